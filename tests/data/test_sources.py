"""Tables of contents: folders, lists, shards, Hugging Face data sets."""

import io
import tarfile
from pathlib import Path

import pytest
import torch
from PIL import Image

from vqlab.data.read import read_image, read_image_bytes
from vqlab.data.sources import ImageSource, open_source
from vqlab.errors import VqlabError


def encoded(colour: tuple[int, int, int], kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (6, 4), colour).save(file, kind)
    return file.getvalue()


def tree(folder: Path, names: list[str]) -> Path:
    for i, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(encoded((i, 0, 0)))
    return folder


def colours(source: ImageSource) -> list[int]:
    images = [source.content(i) for i in range(len(source))]
    read = [read_image(c) if isinstance(c, Path) else read_image_bytes(c, "x") for c in images]
    return [int(image[0, 0, 0]) for image in read]


def test_a_flat_folder_has_no_classes(tmp_path: Path) -> None:
    source = open_source(str(tree(tmp_path, ["b.png", "a.png"])))
    assert list(source.names) == ["a.png", "b.png"]
    assert set(source.class_names) == {""}
    assert source.given_split is None
    assert colours(source) == [1, 0]


def test_the_first_folder_names_the_class(tmp_path: Path) -> None:
    source = open_source(str(tree(tmp_path, ["cat/x/a.png", "dog/a.png", "cat/b.png"])))
    assert list(source.names) == ["cat/b.png", "cat/x/a.png", "dog/a.png"]
    assert list(source.class_names) == ["cat", "cat", "dog"]


@pytest.mark.parametrize("test", ["test", "val", "Validation"])
def test_folders_named_train_and_test_are_the_split(tmp_path: Path, test: str) -> None:
    source = open_source(str(tree(tmp_path, ["train/cat/a.png", "train/dog/b.png", f"{test}/cat/c.png"])))
    given = dict(zip(source.names, source.given_split or [], strict=True))
    assert given == {"train/cat/a.png": "train", "train/dog/b.png": "train", f"{test}/cat/c.png": "test"}
    assert dict(zip(source.names, source.class_names, strict=True))[f"{test}/cat/c.png"] == "cat"


def test_train_beside_something_else_is_a_class(tmp_path: Path) -> None:
    source = open_source(str(tree(tmp_path, ["train/a.png", "boat/b.png"])))
    assert source.given_split is None
    assert list(source.class_names) == ["boat", "train"]


def test_a_list(tmp_path: Path) -> None:
    tree(tmp_path, ["b.png", "x/a.png"])
    (tmp_path / "list.txt").write_text("x/a.png\nb.png\n")
    source = open_source(str(tmp_path / "list.txt"))
    assert list(source.names) == ["x/a.png", "b.png"]
    assert colours(source) == [1, 0]
    (tmp_path / "list.txt").write_text("b.png\nb.png\n")
    with pytest.raises(VqlabError, match="twice"):
        open_source(str(tmp_path / "list.txt"))


def shard(path: Path, members: dict[str, bytes], mode: str = "w") -> None:
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def test_shards(tmp_path: Path) -> None:
    shard(tmp_path / "b.tar", {"1.png": encoded((7, 0, 0)), "1.cls": b"3", "1.json": b"{}"})
    shard(tmp_path / "a.tar", {"1.cls": b"5", "1.png": encoded((8, 0, 0)), "d/2.jpg": encoded((9, 0, 0), "JPEG")})
    source = open_source(str(tmp_path))
    assert list(source.names) == ["a.tar/1.png", "a.tar/d/2.jpg", "b.tar/1.png"]
    assert list(source.class_names) == ["5", "", "3"]
    assert colours(source) == pytest.approx([8, 9, 7], abs=1)  # JPEG decoders differ in the last digit
    assert len(open_source(str(tmp_path / "b.tar"))) == 1


def test_shards_that_cannot_be_used(tmp_path: Path) -> None:
    shard(tmp_path / "none.tar", {"a.json": b"{}"})
    with pytest.raises(VqlabError, match="no images"):
        open_source(str(tmp_path / "none.tar"))
    (tmp_path / "broken.tar").write_bytes(b"not a tar file" * 100)
    with pytest.raises(VqlabError, match=r"broken\.tar"):
        open_source(str(tmp_path / "broken.tar"))
    (tmp_path / "packed").mkdir()
    shard(tmp_path / "packed" / "a.tar", {"1.png": encoded((1, 0, 0))}, "w:gz")
    with pytest.raises(VqlabError, match="uncompressed"):
        open_source(str(tmp_path / "packed"))


def hugging_face(folder: Path, parts: dict[str, int]) -> Path:
    datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
    features = datasets.Features({"picture": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    tables = {
        part: datasets.Dataset.from_dict(
            {"picture": [{"bytes": encoded((i, 0, 0)), "path": None} for i in range(count)], "label": [i % 2 for i in range(count)]},
            features=features,
        )
        for part, count in parts.items()
    }
    datasets.DatasetDict(tables).save_to_disk(str(folder))
    return folder


def test_hugging_face(tmp_path: Path) -> None:
    source = open_source(f"hf:{hugging_face(tmp_path / 'set', {'train': 3, 'test': 2})}")
    assert list(source.names) == ["train/0", "train/1", "train/2", "test/0", "test/1"]
    assert list(source.given_split or []) == ["train"] * 3 + ["test"] * 2
    assert list(source.class_names) == ["cat", "dog", "cat", "cat", "dog"]
    assert colours(source) == [0, 1, 2, 0, 1]


def test_of_a_hugging_face_set_without_a_test_split_only_train_counts(tmp_path: Path) -> None:
    source = open_source(f"hf:{hugging_face(tmp_path / 'set', {'train': 3, 'unsupervised': 2})}")
    assert list(source.names) == ["train/0", "train/1", "train/2"]
    assert source.given_split is None


def test_hugging_face_errors_name_the_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
    datasets.DatasetDict({"train": datasets.Dataset.from_dict({"x": [1]})}).save_to_disk(str(tmp_path / "plain"))
    with pytest.raises(VqlabError, match=r"plain.*no column of images"):
        open_source(f"hf:{tmp_path / 'plain'}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(VqlabError, match="empty"):
        open_source(f"hf:{tmp_path / 'empty'}")
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(VqlabError, match=r"vqlab\[datasets\]"):
        open_source("hf:anything")


def test_colours_survive_the_tree(tmp_path: Path) -> None:
    source = open_source(str(tree(tmp_path, [f"{i:02}.png" for i in range(12)])))
    assert colours(source) == list(range(12))
    assert torch.equal(read_image(source.content(3)), read_image(tmp_path / "03.png"))

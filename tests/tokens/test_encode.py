"""Images to token files: equal to ids in memory, resumable to the byte, split over processes, bad images reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vqlab import Tokenizer, VqlabError
from vqlab.data import load_images, read_image
from vqlab.tokens import EncodeOptions, TokenDataset, encode_images, open_images
from vqlab.tokens import encode as encode_module

Contents = Callable[[Path], dict[str, bytes]]
SMALL = EncodeOptions(shard_size=5, batch_size=2)


def test_ids_equal_those_of_each_image_by_itself(tokenizer: Tokenizer, pictures: Path, tokens: Path) -> None:
    dataset = TokenDataset(tokens, labels=True, verify=True)
    assert len(dataset) == 23
    assert dataset.classes == ("cat", "dog")
    assert dataset.grid is None
    for i in range(23):
        image = read_image(pictures / dataset.name(i))
        assert torch.equal(dataset[i].ids, tokenizer.encode(image))
        assert dataset.classes[dataset[i].label] == Path(dataset.name(i)).parts[0]
    assert [dataset.name(i) for i in range(23)] == sorted(dataset.name(i) for i in range(23))
    assert len(dataset[0].ids.unique()) > 1


def test_a_data_set_by_name_keeps_order_labels_and_classes(tokenizer: Tokenizer, tmp_path: Path) -> None:
    data = load_images("sample")
    report = encode_images(tokenizer, open_images("sample"), tmp_path / "both", EncodeOptions(shard_size=300))
    assert (report.images, report.written, report.kept, report.skipped, report.complete) == (1000, 4, 0, (), True)
    both = TokenDataset(tmp_path / "both")
    assert both.grid == (8, 8)
    images = torch.cat([data.train.images, data.test.images])
    # Batches of the same sizes, so that the arithmetic is the same to the last bit.
    expected = [tokenizer.encode(part) for shard in images.split(300) for part in shard.split(256)]
    assert torch.equal(both.tensor(), torch.cat(expected))
    assert torch.equal(both.labels(), torch.cat([data.train.labels, data.test.labels]))
    assert both.classes == data.classes
    assert (both.name(0), both.name(800)) == ("train/00000.png", "test/00000.png")
    encode_images(tokenizer, open_images("sample:test"), tmp_path / "test")
    assert torch.equal(TokenDataset(tmp_path / "test").labels(), data.test.labels)


def test_a_tokenizer_without_ids_is_refused(pictures: Path, tmp_path: Path) -> None:
    quantizer = {"topology": "residual", "normalize": True, "codebook_dim": 6, "levels": []}
    encoder = {"name": "conv", "width": 8, "residual_blocks": 0, "residual_width": 4, "downsamplings": 2}
    plain = Tokenizer({"channels": 3, "latent_dim": 6, "encoder": encoder, "quantizer": quantizer})
    with pytest.raises(VqlabError, match="no ids"):
        encode_images(plain, open_images(str(pictures)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


# -- interrupted, damaged, split --------------------------------------------------------------------------------------------------


class Stop(Exception):
    pass


@pytest.mark.parametrize("after", [0, 1, 7, 12, 22])
def test_an_interrupted_encoding_goes_on_and_ends_with_the_same_bytes(
    after: int, tokenizer: Tokenizer, pictures: Path, tokens: Path, tmp_path: Path, contents: Contents
) -> None:
    done = 0

    def advance(images: int) -> None:
        nonlocal done
        done += images
        if done > after:
            raise Stop

    out = tmp_path / "interrupted"
    with pytest.raises(Stop):
        encode_images(tokenizer, open_images(str(pictures)), out, SMALL, advance=advance)
    assert not (out / "index.json").exists()
    with pytest.raises(VqlabError, match="unfinished"):
        TokenDataset(out)
    (out / ".shard-00004.safetensors.abc.tmp").write_bytes(b"left by a kill")
    before = {name: (out / name).stat().st_ino for name in contents(out) if name.startswith("shard")}
    report = encode_images(tokenizer, open_images(str(pictures)), out, SMALL)
    assert report.kept == len(before) <= after // 5
    assert report.complete
    assert contents(out) == contents(tokens)
    assert {name: (out / name).stat().st_ino for name in before} == before
    again = encode_images(tokenizer, open_images(str(pictures)), out, SMALL)
    assert (again.images, again.written, again.kept, again.complete) == (0, 0, 5, True)
    assert contents(out) == contents(tokens)


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"", lambda b: b[:200] + b"\xff" * (len(b) - 200)])
def test_a_damaged_shard_of_an_unfinished_encoding_is_written_again(
    damage: Callable[[bytes], bytes], tokenizer: Tokenizer, pictures: Path, tokens: Path, contents: Contents
) -> None:
    whole = contents(tokens)
    (tokens / "plan.json").write_text(json.dumps({k: v for k, v in json.loads(whole["index.json"]).items() if k != "shards"}))
    (tokens / "index.json").unlink()
    (tokens / "shard-00002.safetensors").write_bytes(damage(whole["shard-00002.safetensors"]))
    report = encode_images(tokenizer, open_images(str(pictures)), tokens, SMALL)
    assert (report.kept, report.written) == (4, 1)
    assert contents(tokens) == whole


@pytest.mark.parametrize("world_size", [2, 3, 7])
def test_shards_are_dealt_to_processes(
    world_size: int, tokenizer: Tokenizer, pictures: Path, tokens: Path, tmp_path: Path, contents: Contents
) -> None:
    out = tmp_path / "split"
    images = open_images(str(pictures))
    reports = [encode_images(tokenizer, images, out, SMALL, rank=rank, world_size=world_size) for rank in reversed(range(world_size))]
    assert [report.written for report in reports] == [len(range(rank, 5, world_size)) for rank in reversed(range(world_size))]
    assert [report.complete for report in reports] == [False] * (world_size - 1) + [True]
    assert contents(out) == contents(tokens)


def test_another_plan_does_not_go_on_with_the_files(
    tokenizer: Tokenizer, other_tokenizer: Tokenizer, pictures: Path, tokens: Path, contents: Contents, save: Callable[..., np.ndarray]
) -> None:
    before = contents(tokens)
    with pytest.raises(VqlabError, match="begun with another tokenizer"):
        encode_images(other_tokenizer, open_images(str(pictures)), tokens, SMALL)
    with pytest.raises(VqlabError, match="shard_size 5, not 6"):
        encode_images(tokenizer, open_images(str(pictures)), tokens, EncodeOptions(shard_size=6))
    with pytest.raises(VqlabError, match="image_size None, not 8"):
        encode_images(tokenizer, open_images(str(pictures), image_size=8), tokens, SMALL)
    save(pictures / "cat" / "01.png", 40, 40)
    with pytest.raises(VqlabError, match="other images"):
        encode_images(tokenizer, open_images(str(pictures)), tokens, SMALL)
    assert contents(tokens) == before


def test_a_folder_with_something_else_is_left_alone(tokenizer: Tokenizer, pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(VqlabError, match="not empty and holds no tokens"):
        encode_images(tokenizer, open_images(str(pictures)), tmp_path)
    with pytest.raises(VqlabError, match="is a file"):
        encode_images(tokenizer, open_images(str(pictures)), tmp_path / "thesis.txt")


# -- images that cannot be encoded -----------------------------------------------------------------------------------------------


@pytest.fixture
def mixed(pictures: Path, save: Callable[..., np.ndarray]) -> Path:
    """`pictures` with files among them that cannot be encoded."""
    (pictures / "cat" / "00_text.png").write_text("no image")
    save(pictures / "cat" / "02_odd.png", 9, 8)
    save(pictures / "dog" / "03_one.png", 1, 1)
    whole = (pictures / "dog" / "04.png").read_bytes()
    (pictures / "dog" / "05_half.png").write_bytes(whole[: len(whole) // 2])
    (pictures / "dog" / "06_empty.png").write_bytes(b"")
    Image.new("1", (30_000, 3_000)).save(pictures / "dog" / "07_bomb.png")
    (pictures / "dog" / "08_gone.png").symlink_to("nowhere")
    return pictures


def test_what_cannot_be_encoded_is_reported_and_the_rest_is_encoded(tokenizer: Tokenizer, mixed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = encode_images(tokenizer, open_images(str(mixed)), out, SMALL)
    assert report.complete
    reasons = {item.name: item.reason for item in report.skipped}
    expected = {
        "cat/00_text.png": "not an image",
        "dog/05_half.png": "cannot be read",
        "dog/06_empty.png": "not an image",
        "dog/07_bomb.png": "30000x3000 pixels",
        "dog/08_gone.png": "no such file",
    }
    assert reasons.keys() == expected.keys()
    for name, text in expected.items():
        assert text in reasons[name]
        assert name not in reasons[name]
    assert json.loads((out / "skipped.json").read_text()) == [item._asdict() for item in report.skipped]
    dataset = TokenDataset(out)
    assert (len(dataset), dataset.index.skipped) == (25, 5)
    for i in range(25):
        assert torch.equal(dataset[i], tokenizer.encode(read_image(mixed / dataset.name(i))))
    again = encode_images(tokenizer, open_images(str(mixed)), out, SMALL)
    assert again.skipped == report.skipped


def test_strict_stops_at_the_first(tokenizer: Tokenizer, mixed: Path, tmp_path: Path) -> None:
    strict = EncodeOptions(shard_size=5, batch_size=2, strict=True)
    with pytest.raises(VqlabError, match=r"cat/00_text\.png: not an image"):
        encode_images(tokenizer, open_images(str(mixed)), tmp_path / "out", strict)


def test_nothing_but_bad_images(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for i in range(7):
        (tmp_path / "in" / f"{i}.png").write_bytes(b"x")
    report = encode_images(tokenizer, open_images(str(tmp_path / "in")), tmp_path / "out", SMALL)
    assert len(report.skipped) == 7
    assert len(TokenDataset(tmp_path / "out", verify=True)) == 0


@pytest.mark.parametrize("name", ["batch_size", "shard_size", "workers"])
def test_options_are_checked(name: str) -> None:
    with pytest.raises(VqlabError, match=name):
        EncodeOptions(**{name: -1})


def test_reading_goes_on_while_the_encoder_works(
    tokenizer: Tokenizer, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the first batch is encoded, threads read images of later batches."""
    import threading

    images = open_images(str(pictures))
    read_ahead_of_encoder, seen = threading.Event(), []

    def read(i: int) -> torch.Tensor:
        seen.append(threading.current_thread() is threading.main_thread())
        if i == 6:
            read_ahead_of_encoder.set()
        return images.read(i)

    class Waiting:
        def __getattr__(self, name: str) -> object:
            return getattr(tokenizer, name)

        def encode(self, batch: torch.Tensor) -> torch.Tensor:
            assert read_ahead_of_encoder.wait(20)
            return tokenizer.encode(batch)

    replaced = encode_module.NamedImages(**{**images.__dict__, "read": read})
    encode_images(Waiting(), replaced, tmp_path / "out", EncodeOptions(batch_size=4))  # type: ignore[arg-type]
    assert len(seen) == 23
    assert not any(seen)

"""Where encoded images come from: a folder or list of files, tar shards, a Hugging Face data set.

A source is a table of contents with random access: names, classes and a function that gives the bytes of entry i. Everything after it
(reading, splitting, cropping, batching) is the same for all.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vqlab.data.find import SUFFIXES, find_images
from vqlab.errors import VqlabError

TRAIN_NAMES = ("train", "training")
TEST_NAMES = ("test", "val", "valid", "validation")
HUGGING_FACE = "hf:"


@dataclass(frozen=True)
class ImageSource:
    """Encoded images with random access.

    names: one for each image, unique and the same wherever the data lies; the split goes by them.  class_names: one for each image, ""
    without classes.  given_split: "train" or "test" for each image where the data set is split already, else None.  content: the bytes of
    image i, or the path of its file.
    """

    names: Sequence[str]
    class_names: Sequence[str]
    given_split: Sequence[str] | None
    content: Callable[[int], bytes | Path]

    def __len__(self) -> int:
        return len(self.names)


def open_source(data: str) -> ImageSource:
    """The source that `--data` names: a folder of images or tar shards, a .tar file, a list of files, or hf:NAME.

    Raises VqlabError where there is nothing of that kind.
    """
    if data.startswith(HUGGING_FACE):
        return hugging_face_source(data.removeprefix(HUGGING_FACE))
    path = Path(data).expanduser()
    if path.is_dir() and any(path.glob("*.tar")) and not any(file.suffix.lower() in SUFFIXES for file in path.iterdir()):
        return tar_source(sorted(path.glob("*.tar")))
    if path.suffix.lower() == ".tar" and path.is_file():
        return tar_source([path])
    return file_source(path)


# -- files -----------------------------------------------------------------------------------------------------------------------


def file_source(path: Path) -> ImageSource:
    """Image files of a folder or a list (`find_images`).

    A folder whose images all lie in subfolders train and test (or val, valid, validation) is split so already. The first folder below
    (the first below train or test) names the class. The images of a list have no class.
    """
    files = find_images(path)
    if not path.is_dir():
        names = [file.relative_to(path.parent).as_posix() if file.is_relative_to(path.parent) else file.as_posix() for file in files]
        _check_unique(names, path)
        return ImageSource(names, [""] * len(files), None, files.__getitem__)
    parts = [file.relative_to(path).parts for file in files]
    given = _split_folders([part[0] if len(part) > 1 else "" for part in parts])
    below = [part[1:] for part in parts] if given else parts
    classes = [part[0] if len(part) > 1 else "" for part in below]
    return ImageSource(["/".join(part) for part in parts], classes, given, files.__getitem__)


def _split_folders(first: Sequence[str]) -> list[str] | None:
    """Train or test for each image, if every image lies in a folder of such a name and both kinds are there."""
    kinds = ["train" if name.lower() in TRAIN_NAMES else "test" if name.lower() in TEST_NAMES else "" for name in first]
    return kinds if set(kinds) == {"train", "test"} else None


def _check_unique(names: Sequence[str], place: Path) -> None:
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise VqlabError(f"{place} names {twice} twice")


# -- tar shards (WebDataset) -----------------------------------------------------------------------------------------------------


def tar_source(shards: Sequence[Path]) -> ImageSource:
    """Images in uncompressed tar files, in the layout of WebDataset: KEY.jpg beside KEY.cls, which holds the class.

    Only headers are read; an image is fetched from its place in the shard when it is asked for. Raises VqlabError for a damaged shard, or
    where no shard holds an image. Source of the layout: https://github.com/webdataset/webdataset
    """
    entries: list[tuple[Path, int, int, str]] = []
    classes: dict[str, str] = {}
    for shard in shards:
        try:
            with tarfile.open(shard, "r:") as archive:
                for member in archive:
                    if not member.isfile():
                        continue
                    name = f"{shard.name}/{member.name}"
                    if Path(member.name).suffix.lower() in SUFFIXES:
                        entries.append((shard, member.offset_data, member.size, name))
                    elif member.name.endswith(".cls"):
                        classes[name.removesuffix(".cls")] = _class_of(archive, member)
        except (OSError, tarfile.TarError) as error:
            raise VqlabError(f"cannot read the shard {shard}: {error} (shards are uncompressed tar files)") from error
    if not entries:
        raise VqlabError(f"no images in {', '.join(map(str, shards[:3]))}{' ...' if len(shards) > 3 else ''}")

    def content(i: int) -> bytes:
        shard, offset, size, _ = entries[i]
        with open(shard, "rb") as file:
            file.seek(offset)
            return file.read(size)

    names = [entry[3] for entry in entries]
    return ImageSource(names, [classes.get(name.rsplit(".", 1)[0], "") for name in names], None, content)


def _class_of(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    file = archive.extractfile(member)
    return file.read(200).decode("utf-8", "replace").strip() if file else ""


# -- Hugging Face ----------------------------------------------------------------------------------------------------------------


def hugging_face_source(name: str) -> ImageSource:
    """An image data set of the package `datasets`: a folder that `save_to_disk` wrote, or a name on the hub.

    Its splits train and test (or validation) are kept where both exist. Raises VqlabError where the package is missing, the data set
    cannot be had, or it has no column of images.
    """
    try:
        import datasets
    except ImportError:
        raise VqlabError("--data hf:... needs the package datasets: pip install 'vqlab[datasets]'") from None
    try:
        loaded = datasets.load_from_disk(name) if Path(name).expanduser().is_dir() else datasets.load_dataset(name)
    except Exception as error:  # the package lets errors of many libraries through
        raise VqlabError(f"cannot load the Hugging Face data set {name}: {type(error).__name__}: {error}") from error
    parts: dict[str, Any] = dict(loaded) if isinstance(loaded, dict) else {"all": loaded}
    kinds = _split_folders(list(parts))
    if kinds is None and "train" in parts:
        parts = {"train": parts["train"]}  # what is left over (an unlabelled split, say) is not mixed in
    rows: list[tuple[str, int]] = [(part, i) for part, table in parts.items() for i in range(len(table))]
    columns = {part: _image_column(table.features, f"{name}, {part}", datasets.Image) for part, table in parts.items()}
    encoded = {part: table.cast_column(columns[part], datasets.Image(decode=False)) for part, table in parts.items()}

    def content(i: int) -> bytes | Path:
        part, row = rows[i]
        image = encoded[part][row][columns[part]]
        return image["bytes"] if image["bytes"] is not None else Path(image["path"])

    classes = [label for part, table in parts.items() for label in _labels(table, datasets.ClassLabel)]
    given = None if kinds is None else [kind for kind, table in zip(kinds, parts.values(), strict=True) for _ in range(len(table))]
    return ImageSource([f"{part}/{i}" for part, i in rows], classes, given, content)


def _image_column(features: Any, where: str, kind: type) -> str:
    found = [column for column, feature in features.items() if isinstance(feature, kind)]
    if not found:
        raise VqlabError(f"{where}: no column of images among {', '.join(features)}")
    return found[0]


def _labels(table: Any, kind: type) -> list[str]:
    for column, feature in table.features.items():
        if isinstance(feature, kind):
            return [feature.int2str(i) for i in table[column]]  # type: ignore[attr-defined]
    return [""] * len(table)

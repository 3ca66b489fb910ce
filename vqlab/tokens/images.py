"""Images to encode, by number: files of a folder or a list, or a data set in memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import torch
from PIL import Image, ImageOps
from torch import Tensor

from vqlab.data import DATA_SETS, all_images, find_images, load_images
from vqlab.data.read import ImageFileError, open_upright, to_tensor
from vqlab.errors import VqlabError

#: Pixels of the largest image that is encoded unless told otherwise: 4096 x 4096.
MAX_PIXELS = 2**24


@dataclass(frozen=True)
class NamedImages:
    """Images with random access.

    name: of the whole.  names: one for each, unique relative paths.  digest: SHA-256 of names, labels and sizes.  read: image i as uint8
    (3, h, w); raises ImageFileError.  in_memory: whether `read` is too quick for threads.  labels: int64 (n,), or None.  classes: names of
    the labels.  image_size: side that `read` resizes and crops to, None for the images' own sizes.
    """

    name: str
    names: Sequence[str]
    digest: str
    read: Callable[[int], Tensor]
    in_memory: bool = False
    labels: Tensor | None = None
    classes: tuple[str, ...] | None = None
    image_size: int | None = None

    def __len__(self) -> int:
        return len(self.names)


def open_images(
    images: str, *, data_root: str | Path = "data", image_size: int | None = None, max_pixels: int = MAX_PIXELS, download: bool = True
) -> NamedImages:
    """The images that `images` names: a data set (cifar10, sample), one split of it (cifar10:train), a folder, a list of files, or a file.

    A folder that is called like a data set is reached as ./NAME. Of a folder whose images all lie in subfolders, the first folder below is
    the class. image_size: files are resized and cropped to the centre, a square of this side. max_pixels: larger files are not opened.
    Raises VqlabError where there are no images of that name.
    """
    name, _, split = images.partition(":")
    if name not in DATA_SETS:
        if image_size is not None and image_size < 1:
            raise VqlabError(f"image_size must be at least 1, got {image_size}")
        return _files(Path(images).expanduser(), image_size, max_pixels)
    if image_size is not None:
        raise VqlabError(f"image_size is set, but the images of {name} have one size: it would have no effect")
    if split not in ("", "train", "test"):
        raise VqlabError(f"the splits of {name} are train and test, got {split!r}")
    return _data_set(name, (split,) if split else ("train", "test"), data_root, download)


def _data_set(name: str, splits: Sequence[str], data_root: str | Path, download: bool) -> NamedImages:
    data = load_images(name, data_root, download=download)
    parts = [getattr(data, split) for split in splits]
    # Splits stay apart: the pixels are there already and need no second copy.
    pixels = [all_images(part) for part in parts]
    places = [(images, i) for images in pixels for i in range(len(images))]
    names = [f"{split}/{i:05d}.png" for split, part in zip(splits, parts, strict=True) for i in range(len(part))]
    labels = torch.cat([part.labels for part in parts])
    digest = _digest({"data": name, "splits": splits}, names, labels)

    def read(i: int) -> Tensor:
        images, place = places[i]
        return images[place]

    return NamedImages(":".join([name, *splits] if len(splits) == 1 else [name]), names, digest, read, True, labels, data.classes)


def _files(path: Path, image_size: int | None, max_pixels: int) -> NamedImages:
    files = find_images(path)
    root = path if path.is_dir() else path.parent
    names = [_relative(file, root) for file in files]
    if len(set(names)) < len(names):
        seen: set[str] = set()
        twice = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise VqlabError(f"{path} names {twice} twice: an image can be encoded under one name once")
    labels, classes = _classes(names) if path.is_dir() else (None, None)

    def read(i: int) -> Tensor:
        return _read(files[i], names[i], image_size, max_pixels)

    sizes = [_bytes_of(file) for file in files]
    return NamedImages(path.name or str(path), names, _digest(sizes, names, labels), read, False, labels, classes, image_size)


def _read(file: Path, name: str, image_size: int | None, max_pixels: int) -> Tensor:
    if file.exists() and not file.is_file():
        raise ImageFileError(f"{name}: not a regular file")  # opening a pipe would wait for ever
    image = open_upright(file, name, shorter_side=image_size, max_pixels=max_pixels)
    if image_size is not None and image.size != (image_size, image_size):
        image = ImageOps.fit(image, (image_size, image_size), Image.Resampling.BICUBIC)
    return to_tensor(image)


def _relative(file: Path, root: Path) -> str:
    """A path below `root`; for a file elsewhere its own path without what leads upwards, so that it can be written below any folder."""
    inside = file.relative_to(root) if file.is_relative_to(root) else file
    return "/".join(part for part in inside.parts if part not in ("..", inside.anchor))


def _classes(names: Sequence[str]) -> tuple[Tensor | None, tuple[str, ...] | None]:
    """Labels by the first folder of each name, where every name has one."""
    folders = [PurePath(name).parts[0] if len(PurePath(name).parts) > 1 else None for name in names]
    if None in folders:
        return None, None
    classes = tuple(sorted({folder for folder in folders if folder is not None}))
    number = {name: i for i, name in enumerate(classes)}
    return torch.tensor([number[folder] for folder in folders if folder is not None]), classes


def _bytes_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return -1


def _digest(what: Any, names: Sequence[str], labels: Tensor | None) -> str:
    content = json.dumps([what, names, None if labels is None else labels.tolist()])
    return hashlib.sha256(content.encode()).hexdigest()

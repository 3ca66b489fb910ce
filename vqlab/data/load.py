"""Data sets by name, and your own images."""

from __future__ import annotations

from pathlib import Path

from vqlab.data.arrays import ImageData
from vqlab.data.cifar10 import load_cifar10
from vqlab.data.files import FilesConfig, load_files
from vqlab.data.sample import load_sample
from vqlab.data.sources import HUGGING_FACE
from vqlab.errors import VqlabError

DATA_SETS = ("cifar10", "sample")
#: What `--data` takes, in words.
DATA_HELP = f"{', '.join(DATA_SETS)}, or your own images: a folder, a list of files, tar shards, {HUGGING_FACE}NAME"

ImageSize = int | list[int] | tuple[int, int] | None


def load_images(
    name: str,
    root: str | Path = "data",
    *,
    image_size: ImageSize = None,
    files: FilesConfig | None = None,
    download: bool = True,
) -> ImageData:
    """The data set `name`.

    "cifar10": 50,000 and 10,000 images, looked for in `root`, else downloaded there unless download is False.
    "sample": 800 and 200 of them that come with the package; needs neither `root` nor a network.
    Else the path of a folder of images, a list of files, a tar shard or a folder of them, or hf:NAME of a Hugging Face data set
    (`open_source`), cropped to image_size (both sides, or [height, width]) and read as `files` says.
    Raises VqlabError for an unknown name, where the images cannot be had, and for an image_size that is missing or has no effect.
    """
    check_data(name, image_size, files or FilesConfig())
    if name == "cifar10":
        return load_cifar10(Path(root).expanduser(), download=download)
    if name == "sample":
        return load_sample()
    size = as_size(image_size)
    assert size is not None
    if not name.startswith(HUGGING_FACE) and not Path(name).expanduser().exists():
        raise VqlabError(f"unknown data set {name!r}: choose one of {', '.join(DATA_SETS)}, or name a folder or file that exists")
    return load_files(name, size, files or FilesConfig())


def as_size(image_size: ImageSize) -> tuple[int, int] | None:
    """(height, width) of one number or a pair; VqlabError for anything else."""
    if image_size is None:
        return None
    sides = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    if len(sides) != 2 or any(isinstance(side, bool) or not isinstance(side, int) or side < 1 for side in sides):
        raise VqlabError(f"image_size must be a positive number of pixels, or [height, width], got {image_size!r}")
    return sides[0], sides[1]


def check_data(name: str, image_size: ImageSize, files: FilesConfig) -> None:
    """VqlabError where settings contradict the data set that is named."""
    size = as_size(image_size)
    if name not in DATA_SETS:
        if size is None:
            raise VqlabError(
                f"unknown data set {name!r}: choose one of {', '.join(DATA_SETS)}, or name your own images together with their image_size"
            )
        return
    if size is not None:
        raise VqlabError(f"image_size is set, but the images of {name} are 32x32: it would have no effect")
    if files != FilesConfig():
        raise VqlabError(f"settings of files.* are changed, but data is {name}: they would have no effect")

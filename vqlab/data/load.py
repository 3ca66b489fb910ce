"""Data sets by name."""

from __future__ import annotations

from pathlib import Path

from vqlab.data.arrays import ImageData
from vqlab.data.cifar10 import load_cifar10
from vqlab.data.sample import load_sample
from vqlab.errors import VqlabError

DATA_SETS = ("cifar10", "sample")


def load_images(name: str, root: str | Path = "data", *, download: bool = True) -> ImageData:
    """The data set `name`, whole, in memory.

    "cifar10": 50,000 and 10,000 images, looked for in `root`, else downloaded there unless download is False.
    "sample": 800 and 200 of them that come with the package; needs neither `root` nor a network.
    Raises VqlabError for an unknown name, or where CIFAR-10 cannot be had.
    """
    if name == "cifar10":
        return load_cifar10(Path(root).expanduser(), download=download)
    if name == "sample":
        return load_sample()
    raise VqlabError(f"unknown data set {name!r}: choose one of {', '.join(DATA_SETS)}")

"""A small real sample of CIFAR-10 that is part of the package."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
from PIL import Image

from vqlab.data.arrays import ImageData, ImageSplit
from vqlab.data.cifar10.arrays import CLASSES, Bytes, to_split

FOLDER = "cifar10_sample"


def load_sample() -> ImageData:
    """800 training and 200 test images of CIFAR-10, equally many of each class.

    Each split is drawn from the split of the same name.

    The classes take turns (labels 0, 1, ..., 9, 0, ...), so that any stretch of the images is balanced.
    """
    return ImageData(name="sample", train=_split("train"), test=_split("test"), classes=CLASSES)


def _split(split: str) -> ImageSplit:
    strips = np.stack([_strip(split, name) for name in CLASSES], axis=1)  # (each, classes, 32, 32, 3)
    labels = np.tile(np.arange(len(CLASSES), dtype=np.uint8), len(strips))
    return to_split(strips.reshape(-1, 32, 32, 3), labels)


def _strip(split: str, name: str) -> Bytes:
    """The images of one class, one below the other in one PNG: uint8 (n, 32, 32, 3)."""
    path = files("vqlab.data") / FOLDER / f"{split}_{name}.png"
    with path.open("rb") as file, Image.open(file) as picture:
        return np.asarray(picture.convert("RGB")).reshape(-1, 32, 32, 3)

"""CIFAR-10 as plain arrays, and the check that every source has to pass."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vqlab.data.arrays import ImageData, ImageSplit

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

Bytes = NDArray[np.uint8]


class SourceError(Exception):
    """A source cannot give CIFAR-10; the message is the reason."""


class Cifar10Arrays(NamedTuple):
    """Images uint8 (n, 32, 32, 3) and labels uint8 (n,) of both splits, in the published order."""

    train_images: Bytes
    train_labels: Bytes
    test_images: Bytes
    test_labels: Bytes


# SHA-256 of the bytes of each array of Cifar10Arrays.
SUMS = {
    "train_images": "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
    "train_labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
    "test_images": "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
    "test_labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
}


def verify(arrays: Cifar10Arrays) -> None:
    """Raise SourceError unless all four arrays are, byte for byte, those of CIFAR-10."""
    for name, array in arrays._asdict().items():
        if array.dtype != np.uint8:
            raise SourceError(f"{name} is {array.dtype}, not uint8")
        if array.shape[1:] != ((32, 32, 3) if name.endswith("images") else ()):
            raise SourceError(f"{name} has shape {array.shape}")
        found = hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
        if found != SUMS[name]:
            sums = f"SHA-256 {found[:12]}..., expected {SUMS[name][:12]}..."
            raise SourceError(f"{name} is not that of CIFAR-10 ({sums})")


def to_image_data(arrays: Cifar10Arrays) -> ImageData:
    """The same as tensors: images uint8 (n, 3, 32, 32), labels int64 (n,)."""
    return ImageData(
        name="cifar10",
        train=to_split(arrays.train_images, arrays.train_labels),
        test=to_split(arrays.test_images, arrays.test_labels),
        classes=CLASSES,
    )


def to_split(images: Bytes, labels: Bytes) -> ImageSplit:
    """Channels-last bytes (n, h, w, 3) and labels (n,) as a split."""
    # torch.tensor copies: a tensor over a read-only array (PIL, memory map) could be written to by accident.
    return ImageSplit(torch.tensor(images).permute(0, 3, 1, 2).contiguous(), torch.tensor(labels).long())

"""Images in memory: one split, and the two splits of a data set."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vqlab.errors import VqlabError


@dataclass(frozen=True)
class ImageSplit:
    """The images and labels of one split.

    images: uint8 (n, 3, h, w), contiguous, 0..255. labels: int64 (n,).
    Raises VqlabError for another type or shape.
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4 or self.images.shape[1] != 3:
            raise VqlabError(f"images must be uint8 (n, 3, h, w), got {_describe(self.images)}")
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise VqlabError(f"labels must be int64 ({len(self.images)},), got {_describe(self.labels)}")
        if not self.images.is_contiguous():
            object.__setattr__(self, "images", self.images.contiguous())

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True)
class ImageData:
    """A data set: its name, its two splits and the names of its classes (label i is classes[i])."""

    name: str
    train: ImageSplit
    test: ImageSplit
    classes: tuple[str, ...]


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"

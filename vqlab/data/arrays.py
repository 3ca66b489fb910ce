"""Images in memory: one split, and the two splits of a data set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Generator, Tensor

from vqlab.data.augment import random_crop_flip
from vqlab.errors import VqlabError


class Split(Protocol):
    """Images of one size and their labels, int64 (n,): what batches are made of."""

    @property
    def labels(self) -> Tensor: ...

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of every image."""
        ...

    @property
    def ahead(self) -> int:
        """Batches worth preparing ahead in another thread; 0 where images are at hand."""
        ...

    def __len__(self) -> int: ...

    def plain(self, chosen: Tensor) -> Tensor:
        """The images at these places, always the same: int64 (b,) -> uint8 (b, 3, h, w)."""
        ...

    def augmented(self, chosen: Tensor, generator: Generator) -> Tensor:
        """The images at these places, cropped and mirrored at random: int64 (b,) -> uint8 (b, 3, h, w)."""
        ...

    def sample(self, count: int) -> Tensor:
        """About `count` plain images that stand for all, or all of them where there are fewer."""
        ...


@dataclass(frozen=True)
class ImageSplit:
    """The images and labels of one split, in memory.

    images: uint8 (n, 3, h, w), contiguous, 0..255. labels: int64 (n,).
    Raises VqlabError for another type or shape.
    """

    images: Tensor
    labels: Tensor
    ahead: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4 or self.images.shape[1] != 3:
            raise VqlabError(f"images must be uint8 (n, 3, h, w), got {_describe(self.images)}")
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise VqlabError(f"labels must be int64 ({len(self.images)},), got {_describe(self.labels)}")
        if not self.images.is_contiguous():
            object.__setattr__(self, "images", self.images.contiguous())

    def __len__(self) -> int:
        return len(self.images)

    @property
    def image_size(self) -> tuple[int, int]:
        return self.images.shape[2], self.images.shape[3]

    def plain(self, chosen: Tensor) -> Tensor:
        return self.images[chosen]

    def augmented(self, chosen: Tensor, generator: Generator) -> Tensor:
        return random_crop_flip(self.images[chosen], generator)

    def sample(self, count: int) -> Tensor:
        return self.images[:count]


def all_images(split: Split) -> Tensor:
    """All plain images of a split in memory: uint8 (n, 3, h, w), without a copy where they are there already."""
    return split.images if isinstance(split, ImageSplit) else split.plain(torch.arange(len(split)))


@dataclass(frozen=True)
class ImageData:
    """A data set: its name, its two splits and the names of its classes (label i is classes[i]).

    skipped: images that could not be read, name to reason; it may grow while images are read.  fingerprint: stands for the names and the
    split of all images; "" where they never change.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str = ""


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"

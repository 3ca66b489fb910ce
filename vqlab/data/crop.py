"""Rectangles of images, at any target size: the centre, or a random part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

#: How far the sides of a random rectangle may depart from the target's proportions.
RATIO = 4 / 3


class Box(NamedTuple):
    """A rectangle of an image, in pixels: at least 1x1, inside the image."""

    top: int
    left: int
    height: int
    width: int


def centre_box(height: int, width: int, size: tuple[int, int]) -> Box:
    """The largest centred rectangle with the proportions of `size` (h, w)."""
    box = _fit(height, width, size[0] / size[1])
    return Box((height - box[0]) // 2, (width - box[1]) // 2, *box)


def random_box(height: int, width: int, size: tuple[int, int], min_scale: float, draws: Sequence[float]) -> Box:
    """A random rectangle: a share of min_scale to 1 of the largest one with the proportions of `size`, stretched by up to RATIO, anywhere.

    draws: four numbers in [0, 1) for area, stretch and place. Source: Szegedy et al., "Going Deeper with Convolutions" (arXiv:1409.4842),
    section 6; rectangles that would stick out shrink, where the usual implementation draws again.
    """
    scale, stretch, y, x = draws
    ratio = size[0] / size[1] * RATIO ** (2 * stretch - 1)
    most = _fit(height, width, size[0] / size[1])
    area = most[0] * most[1] * (min_scale + (1 - min_scale) * scale)
    wanted = math.sqrt(area * ratio), math.sqrt(area / ratio)
    shrink = min(1.0, height / wanted[0], width / wanted[1])
    h, w = (min(side, max(1, round(want * shrink))) for side, want in zip((height, width), wanted, strict=True))
    return Box(int(y * (height - h + 1)), int(x * (width - w + 1)), h, w)


def cut(image: Tensor, box: Box, size: tuple[int, int]) -> Tensor:
    """The rectangle of a uint8 image (3, h, w), resized to `size` (bicubic, antialiased): uint8 (3, *size)."""
    if box == (0, 0, *image.shape[1:]) == (0, 0, *size):
        return image
    return F.resized_crop(image, *box, list(size), InterpolationMode.BICUBIC, antialias=True)


def _fit(height: int, width: int, ratio: float) -> tuple[int, int]:
    """Sides of the largest rectangle with height / width = ratio."""
    if height > width * ratio:
        return max(1, round(width * ratio)), width
    return height, max(1, round(height / ratio))

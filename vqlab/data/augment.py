"""Augmentation of a whole batch at once, on uint8 images."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from vqlab.errors import VqlabError


def random_crop_flip(images: Tensor, generator: Generator, padding: int = 4) -> Tensor:
    """Random crop of the reflect-padded images at their own size, then a horizontal flip half of the time.

    images: (b, c, h, w), any type -> same shape and type.
    Each image draws its own crop and flip from `generator`.
    Raises VqlabError where the images are too small to be reflect-padded (h or w <= padding).
    """
    b, c, h, w = images.shape
    if min(h, w) <= padding:
        raise VqlabError(f"augmentation pads by {padding} pixels and needs larger images than {h}x{w}")
    top = torch.randint(0, 2 * padding + 1, (b, 1), generator=generator)
    left = torch.randint(0, 2 * padding + 1, (b, 1), generator=generator)
    flip = torch.randint(0, 2, (b, 1), generator=generator).bool()

    # The padded image is never built: a crop of it only reads pixels of the original, at reflected places.
    rows = _reflect(torch.arange(h) + top - padding, h)  # (b, h)
    columns = _reflect(torch.arange(w) + left - padding, w)  # (b, w)
    columns = torch.where(flip, columns.flip(1), columns)
    pixels = (rows[:, :, None] * w + columns[:, None, :]).view(b, 1, h * w).expand(b, c, h * w)
    return images.reshape(b, c, h * w).gather(2, pixels).view(b, c, h, w)


def _reflect(index: Tensor, size: int) -> Tensor:
    """Places outside 0..size-1 mirrored at the border pixel, which is not repeated."""
    last = size - 1
    return last - (last - index.abs()).abs()

"""Images at the border of the framework: what is accepted, and the scale that networks see."""

from __future__ import annotations

import torch
from torch import Tensor

#: What to do with images of another number of channels.
_HINTS = {
    1: "; grey images: images.expand(-1, 3, -1, -1)",
    4: "; images with transparency: put them on a background first, as vqlab.data.read_image does",
}


def as_unit_images(images: Tensor, channels: int = 3) -> Tensor:
    """A batch (b, channels, h, w) of float32 in [0, 1] from uint8 or from floats in [0, 1].

    Raises ValueError naming what is wrong: another number of axes or channels, another dtype, NaN, or values outside [0, 1].
    """
    if images.dim() != 4:
        raise ValueError(f"expected images (b, {channels}, h, w) or one image ({channels}, h, w), got shape {tuple(images.shape)}")
    if images.shape[1] != channels:
        hint = (
            f"; axis order is (b, {channels}, h, w)"
            if images.shape[-1] == channels
            else _HINTS.get(images.shape[1], "; convert the images first")
        )
        raise ValueError(f"expected {channels} colour channels, got {images.shape[1]} in shape {tuple(images.shape)}{hint}")
    if images.dtype == torch.uint8:
        return images.float().div_(255.0)
    if not images.is_floating_point():
        raise ValueError(f"images must be uint8 or floats in [0, 1], got {images.dtype}")
    images = images.float()
    if images.numel():
        low, high = float(images.min()), float(images.max())
        if not (low >= -1e-4 and high <= 1 + 1e-4):
            raise ValueError(f"float images must lie in [0, 1], got values from {low:.4g} to {high:.4g}")
    return images.clamp(0.0, 1.0)  # what rounding has put beyond the ends


def to_network(unit: Tensor) -> Tensor:
    """[0, 1] -> [-1, 1], the scale that encoders read and decoders write."""
    return unit * 2.0 - 1.0


def to_unit(network: Tensor) -> Tensor:
    """[-1, 1] -> [0, 1] in float32, not clamped."""
    return (network.float() + 1.0) * 0.5

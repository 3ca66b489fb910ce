"""The convolutional encoder and decoder of the CIFAR-10 VQ-VAE (van den Oord et al., arXiv:1711.00937, section 4.1).

    image (b, c, h, w) --> [4x4 stride 2 conv, ReLU] x downsamplings --> 3x3 conv --> residual blocks --> 1x1 conv --> (b, d, h/f, w/f)
    (b, d, h/f, w/f) --> 3x3 conv --> residual blocks --> [4x4 stride 2 transposed conv, ReLU] x downsamplings --> image

A residual block is ReLU, 3x3 conv to `residual_width`, ReLU, 1x1 conv back. Spatial factor f = 2 ** downsamplings.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class ConvConfig:
    """Shape of the convolutional backbone, shared by encoder and decoder.

    Args:
        width: channels at the grid's resolution.
        residual_blocks: residual blocks in the encoder and in the decoder.
        residual_width: channels inside a residual block.
        downsamplings: halvings of the resolution (2: 32x32 pixels give 8x8 tokens).
    """

    width: int = 128
    residual_blocks: int = 2
    residual_width: int = 32
    downsamplings: int = 2

    def __post_init__(self) -> None:
        ranges = {"width": (1, 2**20), "residual_blocks": (0, 1000), "residual_width": (1, 2**20), "downsamplings": (0, 16)}
        for name, (least, most) in ranges.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"conv backbone: {name} must be an integer of at least {least}, got {value!r}")
            if value > most:
                raise ValueError(f"conv backbone: {name} must be at most {most}, got {value}")

    @property
    def factor(self) -> int:
        """Pixels per token along each side; image sides must be multiples of it."""
        return 2**self.downsamplings

    @property
    def stage_widths(self) -> list[int]:
        """Channels after each halving: width/2 until the last, which has `width`."""
        return [max(1, self.width // 2)] * max(0, self.downsamplings - 1) + [self.width] * min(1, self.downsamplings)

    def settings(self) -> dict[str, Any]:
        return asdict(self)


class ResidualBlock(nn.Module):
    """x + conv1x1(ReLU(conv3x3(ReLU(x)))): (b, width, h, w) -> same."""

    def __init__(self, width: int, residual_width: int) -> None:
        super().__init__()
        self.conv3 = nn.Conv2d(width, residual_width, 3, padding=1)
        self.conv1 = nn.Conv2d(residual_width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv1(F.relu(self.conv3(F.relu(x)), inplace=True))


class ConvEncoder(nn.Module):
    """Images to a grid of vectors: (b, channels, h, w) -> (b, dim, h / f, w / f), f = config.factor.

    latent_bias: whether the last convolution has a bias; where latents are normalised it has no effect but to drift.
    """

    def __init__(self, dim: int, config: ConvConfig, channels: int = 3, latent_bias: bool = True) -> None:
        super().__init__()
        self.factor = config.factor
        layers: list[nn.Module] = []
        previous = channels
        for width in config.stage_widths:
            # In-place ReLUs save an allocation of the largest tensors, which costs more than the arithmetic on CPUs.
            layers += [nn.Conv2d(previous, width, 4, stride=2, padding=1), nn.ReLU(inplace=True)]
            previous = width
        layers += [nn.Conv2d(previous, config.width, 3, padding=1)]
        layers += [ResidualBlock(config.width, config.residual_width) for _ in range(config.residual_blocks)]
        layers += [nn.ReLU(inplace=True), nn.Conv2d(config.width, dim, 1, bias=latent_bias)]
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


class ConvDecoder(nn.Module):
    """A grid of vectors back to images: (b, dim, h, w) -> (b, channels, f h, f w), f = config.factor."""

    def __init__(self, dim: int, config: ConvConfig, channels: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(dim, config.width, 3, padding=1)]
        layers += [ResidualBlock(config.width, config.residual_width) for _ in range(config.residual_blocks)]
        layers += [nn.ReLU(inplace=True)]
        widths = [*config.stage_widths[-2::-1], channels]  # the encoder's, mirrored
        previous = config.width
        for i in range(config.downsamplings):
            layers += [nn.ConvTranspose2d(previous, widths[i], 4, stride=2, padding=1)]
            if i + 1 < config.downsamplings:
                layers += [nn.ReLU(inplace=True)]
            previous = widths[i]
        if config.downsamplings == 0:
            layers += [nn.Conv2d(config.width, channels, 3, padding=1)]
        self.layers = nn.Sequential(*layers)

    def forward(self, latents: Tensor) -> Tensor:
        return self.layers(latents)

"""The reconstruction loss: squared and absolute differences of pixels, and distances of features.

    loss = l2 mse / variance + l1 mean|x - y| / sqrt(variance) + perceptual distance(x, y)

variance is that of the training pixels: weights so mean the same for every data set.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vqlab.errors import VqlabError
from vqlab.losses.perceptual import FEATURE_NETWORKS, FeatureDistance


@dataclass(frozen=True)
class LossConfig:
    """Weights of the reconstruction loss.

    Args:
        l2: of the squared difference of pixels, over the variance of the training pixels.
        l1: of the absolute difference of pixels, over the standard deviation of the training pixels.
        perceptual: of the distance of features; needs weights that install as a package.
        network: the feature network.
    """

    l2: float = 1.0
    l1: float = 0.0
    perceptual: float = 0.0
    network: str = FEATURE_NETWORKS[0]

    def __post_init__(self) -> None:
        for name in ("l2", "l1", "perceptual"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise VqlabError(f"loss.{name} must be finite and not negative, got {value}")
        if self.l2 + self.l1 + self.perceptual == 0:
            raise VqlabError("one of loss.l2, loss.l1 and loss.perceptual must be positive: nothing would be learned")
        if self.network not in FEATURE_NETWORKS:
            raise VqlabError(f"loss.network must be one of {', '.join(FEATURE_NETWORKS)}, got {self.network!r}")


class ReconstructionLoss(nn.Module):
    """Loss of reconstructions (b, 3, h, w) against images in [0, 1], and its parts by name (detached): mse, and distance where it counts.

    Raises VqlabError where the feature network's package is missing.
    """

    def __init__(self, config: LossConfig, pixel_variance: float) -> None:
        super().__init__()
        self.config, self.pixel_variance = config, pixel_variance
        self.distance = FeatureDistance(config.network) if config.perceptual else None

    def forward(self, reconstruction: Tensor, images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        difference = reconstruction - images
        mse = difference.square().mean()
        parts = {"reconstruction": mse.detach()}
        terms = [self.config.l2 * mse / self.pixel_variance]
        if self.config.l1:
            terms.append(self.config.l1 * difference.abs().mean() / math.sqrt(self.pixel_variance))
        if self.distance is not None:
            distance = self.distance(reconstruction, images).mean()
            parts["feature_distance"] = distance.detach()
            terms.append(self.config.perceptual * distance)
        return torch.stack(terms).sum(), parts

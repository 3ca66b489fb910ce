"""Fréchet distance between two sets of images in the space of a network's features."""

from __future__ import annotations

from torch import Tensor, nn
from torchmetrics.image.fid import FrechetInceptionDistance

from vqlab.errors import VqlabError
from vqlab.metrics.features import ImageFeatures


class _Given(nn.Identity):
    """Stands for a network in torchmetrics: the features are computed already."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features


class FrechetDistance(nn.Module):
    """||m_r - m_g||^2 + tr(S_r + S_g - 2 (S_r S_g)^(1/2)) of means and covariances of features of real and generated images.

    M. Heusel et al., "GANs Trained by a Two Time-Scale Update Rule", NeurIPS 2017, equation 6, by torchmetrics in float64. With features of
    Inception it is FID, and rFID where the generated images are reconstructions of the real ones. Values of different networks, or of
    different numbers of images, are not comparable.
    """

    def __init__(self, network: ImageFeatures) -> None:
        super().__init__()
        self.network = network
        self.metric = FrechetInceptionDistance(feature=_Given(network.num_features))

    @property
    def name(self) -> str:
        """fd_ and the name of the network."""
        return f"fd_{self.network.name}"

    def update(self, images: Tensor, *, real: bool) -> None:
        """Add images (b, 3, h, w), uint8 or floats clamped to [0, 1]."""
        self.update_features(self.network(images), real=real)

    def update_features(self, features: Tensor, *, real: bool) -> None:
        """Add what `self.network` gave for images: (b, num_features)."""
        self.metric.update(features.double(), real=real)

    def compute(self) -> float:
        """The distance; VqlabError with fewer than 2 real or generated images, which have no covariance."""
        real, generated = int(self.metric.real_features_num_samples), int(self.metric.fake_features_num_samples)
        if min(real, generated) < 2:
            raise VqlabError(f"{self.name} needs at least 2 real and 2 generated images, got {real} and {generated}")
        return float(self.metric.compute())

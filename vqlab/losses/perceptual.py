"""How far two images are apart for a network that was trained to recognize things.

    y_l = features of stage l, each place divided by its norm over the channels
    distance = mean over stages l of mean over places of ||y_l(a) - y_l(b)||^2

Source: Zhang et al., LPIPS (arXiv:1801.03924), equation 1, with equal weights for all channels: those that LPIPS learned belong to other
networks, whose weights are not packaged.
"""

from __future__ import annotations

import timm
import torch
from torch import Tensor, nn

from vqlab.backbones.packaged import PACKAGED, packaged_weights
from vqlab.errors import VqlabError

#: Networks that distances can be measured with: those whose weights install as a package.
FEATURE_NETWORKS = tuple(PACKAGED)
_EPS = 1e-8


class FeatureDistance(nn.Module):
    """Distance of images by the features of a frozen ImageNet network: two (b, 3, h, w) on the scale of [0, 1] -> (b,), 0 to 4.

    network: one of FEATURE_NETWORKS. Gradients pass to both images. Raises VqlabError for an unknown network, or without its package.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: str = FEATURE_NETWORKS[0]) -> None:
        super().__init__()
        if network not in FEATURE_NETWORKS:
            raise VqlabError(f"unknown feature network {network!r}: choose from {', '.join(FEATURE_NETWORKS)}")
        self.network = network
        with torch.random.fork_rng(devices=[]):  # weights that are replaced at once must not cost the caller random numbers
            # The last stage has few places in small images: stride 16 and less.
            self.body = timm.create_model(PACKAGED[network], features_only=True, out_indices=(0, 1, 2, 3))
        weights = packaged_weights(network)
        self.body.load_state_dict({name: weights[name] for name in self.body.state_dict()})
        normalisation = timm.data.resolve_model_data_config(self.body)
        self.register_buffer("mean", torch.tensor(normalisation["mean"]).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(normalisation["std"]).view(3, 1, 1))
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> FeatureDistance:
        """Always in eval() mode: its statistics are those of its training."""
        return super().train(False)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        distances = [
            (_directions(x) - _directions(y)).square().sum(1).mean((1, 2))
            for x, y in zip(self._features(a), self._features(b), strict=True)
        ]
        return torch.stack(distances).mean(0)

    def _features(self, images: Tensor) -> list[Tensor]:
        return self.body((images - self.mean) / self.std)


def _directions(features: Tensor) -> Tensor:
    """Unit vectors over the channels, in float32."""
    features = features.float()
    return features * torch.rsqrt(features.square().sum(1, keepdim=True) + _EPS)

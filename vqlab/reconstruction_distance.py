"""Fréchet distances between images and what a tokenizer makes of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vqlab.metrics.features import load_features
from vqlab.metrics.frechet import FrechetDistance
from vqlab.tokenizer import Tokenizer


class ReconstructionDistances(nn.Module):
    """Distance of the originals to images decoded from ids, and to soft reconstructions where the tokenizer has them.

    features: a name of `vqlab.metrics.features.IMAGE_FEATURES`. Call `update` for every batch, then `compute`.
    """

    def __init__(self, features: str, tokenizer: Tokenizer) -> None:
        super().__init__()
        network = load_features(features)
        kinds = ("hard", "soft") if tokenizer.quantizer.is_soft else ("hard",)
        self.distances = nn.ModuleDict({kind: FrechetDistance(network) for kind in kinds})

    @torch.no_grad()
    def update(self, tokenizer: Tokenizer, images: Tensor) -> None:
        """Add a batch of images (b, 3, h, w), float in [0, 1]."""
        out = tokenizer(images)
        decoded = tokenizer.decode_indices(out.quantizer.indices) if tokenizer.quantizer.num_levels else out.reconstruction
        for kind, distance in self.distances.items():
            assert isinstance(distance, FrechetDistance)
            if kind == "hard":
                real = distance.network(images)
            distance.update_features(real, real=True)
            distance.update(decoded if kind == "hard" else out.reconstruction, real=False)

    def compute(self) -> dict[str, float]:
        """hard/fd_NAME and soft/fd_NAME; VqlabError with fewer than two images."""
        return {f"{kind}/{d.name}": d.compute() for kind, d in self.distances.items() if isinstance(d, FrechetDistance)}

"""The space that codes live in: projection to `codebook_dim` and a fixed scale."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vqlab.distributed import several_ranks, sum_over_ranks


class LatentNorm(nn.Module):
    """Each channel to mean 0, variance 1 over the batch's tokens (all processes), by running ones in `eval()`: (n, d) -> (n, d).

    A loss that grows with the distance to the prototypes rewards an encoder that shrinks its outputs; with the scale fixed, shrinking
    has no effect and the temperature keeps its meaning. Gradients pass through the batch statistics.
    """

    mean: Tensor
    variance: Tensor
    initialised: Tensor

    def __init__(self, dim: int, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("variance", torch.ones(dim))
        self.register_buffer("initialised", torch.tensor(False))

    def forward(self, z: Tensor) -> Tensor:
        if not self.training:
            return (z - self.mean) * torch.rsqrt(self.variance + self.eps)
        if z.shape[0] == 0:
            raise ValueError("a training batch without tokens has no statistics to normalise by")
        mean, variance = self._batch_statistics(z)
        with torch.no_grad():
            momentum = self.momentum if self.initialised else 1.0
            self.mean.lerp_(mean.detach(), momentum)
            self.variance.lerp_(variance.detach(), momentum)
            self.initialised.fill_(True)
        return (z - mean) * torch.rsqrt(variance + self.eps)

    @torch.no_grad()
    def calibrate(self, z: Tensor) -> None:
        """Take the statistics of these tokens (n, d) as the running ones; no tokens change nothing."""
        if z.shape[0]:
            mean, variance = self._batch_statistics(z)
            self.mean.copy_(mean)
            self.variance.copy_(variance)
            self.initialised.fill_(True)

    @staticmethod
    def _batch_statistics(z: Tensor) -> tuple[Tensor, Tensor]:
        if not several_ranks():
            return z.mean(0), z.var(0, correction=0)
        total = sum_over_ranks(torch.cat([z.sum(0), z.new_tensor([z.shape[0]])]))
        mean = total[:-1] / total[-1]
        return mean, sum_over_ranks((z - mean).square().sum(0)) / total[-1]


class LatentSpace(nn.Module):
    """Linear map dim -> codebook_dim, normalisation, and the way back; identities where nothing is to do.

    `enter`: (n, dim) -> (n, codebook_dim) float32.  `leave`: (n, codebook_dim) -> (n, dim).
    """

    def __init__(self, dim: int, codebook_dim: int, normalize: bool = True) -> None:
        super().__init__()
        same = dim == codebook_dim
        self.project_in = nn.Identity() if same else nn.Linear(dim, codebook_dim)
        self.norm = LatentNorm(codebook_dim) if normalize else nn.Identity()
        self.project_out = nn.Identity() if same else nn.Linear(codebook_dim, dim)

    def enter(self, z: Tensor) -> Tensor:
        return self.norm(self.project_in(z))

    def calibrate(self, z: Tensor) -> None:
        """Running statistics of the normalisation from tokens (n, dim); nothing to do where there is none."""
        if isinstance(self.norm, LatentNorm):
            self.norm.calibrate(self.project_in(z))

    def leave(self, codes: Tensor) -> Tensor:
        return self.project_out(codes)

"""SoftVQ: a token becomes the mean of the codes under a softmax of dot products; nothing limits the spread V of what it mixes.

Source: Chen et al., "SoftVQ-VAE: Efficient 1-Dimensional Continuous Tokenizer" (arXiv:2412.10958).

    z, p on the unit sphere       q_nk = softmax_k(z_n . p_k / tau)       quantized = sum_k q_nk p_k       id = argmax_k q_nk
    loss = entropy_weight (mean_n H(q_n) - H(mean_n q_n))

On the sphere z.p = 1 - ||z - p||^2 / 2, so that q is a Boltzmann assignment of temperature 2 tau (`vqlab.fused.soft_assign`).

Made for continuous tokens: tau is constant, and nothing makes what ids decode to come close to the soft output.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from vqlab.assignment import entropy_of
from vqlab.fused import nearest, soft_assign
from vqlab.quantizers.base import Codebook, LevelOutput


class SoftVQCodebook(Codebook):
    """One level of SoftVQ.

    Args:
        tau: temperature of the softmax.
        entropy_weight: weight of the entropy of single assignments minus that of their mean.
    """

    kind = "softvq"
    is_soft = True
    part_names = ("entropy", "usage_penalty")

    def __init__(self, dim: int, codebook_size: int, *, tau: float = 0.07, entropy_weight: float = 0.01) -> None:
        super().__init__(dim, codebook_size)
        if not 0 < tau < math.inf:
            raise ValueError(f"tau must be positive and finite, got {tau}")
        if not 0 <= entropy_weight < math.inf:
            raise ValueError(f"entropy_weight must be finite and not negative, got {entropy_weight}")
        self.tau, self.entropy_weight = tau, entropy_weight
        self.embedding = nn.Parameter(nn.functional.normalize(torch.randn(codebook_size, dim), dim=-1))

    @property
    def codes(self) -> Tensor:
        return nn.functional.normalize(self.embedding, dim=-1)

    def forward(self, z: Tensor) -> LevelOutput:
        """Soft means of the codes, without the tokens x codes matrix: (n, dim) float32 -> LevelOutput with parts entropy mean_n H(q_n)
        and usage_penalty log K - H(mean_n q_n), in nats."""
        soft = soft_assign(nn.functional.normalize(z, dim=-1), self.codes, 2.0 * self.tau)
        entropy, mean_entropy = soft.entropy.mean(), entropy_of(soft.mean_assignment)
        return LevelOutput(
            quantized=soft.centroid,
            indices=soft.indices,
            loss=self.entropy_weight * (entropy - mean_entropy),
            parts={"entropy": entropy.detach(), "usage_penalty": math.log(self.codebook_size) - mean_entropy.detach()},
            mean_assignment=soft.mean_assignment.detach(),
        )

    def encode(self, z: Tensor) -> Tensor:
        return nearest(nn.functional.normalize(z, dim=-1), self.codes)

    def freeze(self, frozen: bool = True) -> None:
        super().freeze(frozen)
        self.embedding.requires_grad_(not frozen)

    def codebook_parameters(self) -> list[nn.Parameter]:
        return [self.embedding]

    def settings(self) -> dict[str, Any]:
        return {"tau": self.tau, "entropy_weight": self.entropy_weight}

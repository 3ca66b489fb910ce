"""Lookup-free and binary spherical quantization: the signs of a token are its id.

Sources: Yu et al., "Language Model Beats Diffusion: Tokenizer Is Key to Visual Generation" (LFQ, arXiv:2310.05737); Zhao et al., "Image
and Video Tokenization with Binary Spherical Quantization" (BSQ, arXiv:2406.07548).

    lfq   u = z            code = sign(u)                     bsq   u = z / ||z||      code = sign(u) / sqrt(dim)
    q_nk = softmax_k(2 beta u_n . code_k) = softmax_k(-beta ||u_n - code_k||^2), codes being of one length     beta = inverse_temperature
    entropy penalty = mean_n H(q_n) - diversity H(mean_n q_n)
    loss = entropy_weight (entropy penalty) + commitment_weight mean (u - code)^2

Equal to `vector_quantize_pytorch.LFQ` (a test compares them), whose entropies hold the tokens x codes matrix several times over; here they
are computed in blocks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vqlab.assignment import entropy_of
from vqlab.fused import soft_assign
from vqlab.quantizers.base import LevelOutput
from vqlab.quantizers.peers.implicit import GridCodes, ImplicitCodebook


class LFQCodebook(ImplicitCodebook):
    """One level of lookup-free quantization; `codebook_size` is a power of two.

    Args:
        entropy_weight: weight of the entropy penalty.
        diversity: weight of the entropy of the mean assignment within the penalty.
        commitment_weight: weight of the squared distance from token to code.
        inverse_temperature: sharpness of the assignment that the penalty looks at.
    """

    kind = "lfq"
    part_names = ("distortion", "commitment", "token_entropy", "mean_entropy")
    spherical = False
    place_values: Tensor

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        *,
        entropy_weight: float = 0.1,
        diversity: float = 1.0,
        commitment_weight: float = 0.25,
        inverse_temperature: float = 100.0,
    ) -> None:
        super().__init__(dim, codebook_size)
        for name, weight in (("entropy_weight", entropy_weight), ("diversity", diversity), ("commitment_weight", commitment_weight)):
            if not 0 <= weight < float("inf"):
                raise ValueError(f"{name} must be finite and not negative, got {weight}")
        if not 0 < inverse_temperature < float("inf"):
            raise ValueError(f"inverse_temperature must be positive and finite, got {inverse_temperature}")
        self.entropy_weight, self.diversity, self.commitment_weight = entropy_weight, diversity, commitment_weight
        self.inverse_temperature = inverse_temperature
        # The first dimension is the highest bit.
        self.register_buffer("place_values", 2 ** torch.arange(self.grid_dim).flip(0), persistent=False)

    @classmethod
    def default_dim(cls, codebook_size: int) -> int:
        bits = codebook_size.bit_length() - 1
        if bits < 1 or codebook_size != 1 << bits:
            raise ValueError(f"codebook_size of {cls.kind} must be a power of two of at least 2, got {codebook_size}")
        return bits

    @property
    def grid(self) -> Tensor:  # type: ignore[override]
        ids = torch.arange(self.codebook_size, device=self.place_values.device)
        return self._signs((ids[:, None] & self.place_values) != 0)

    def _signs(self, positive: Tensor) -> Tensor:
        return (2.0 * positive - 1.0) * (self.grid_dim**-0.5 if self.spherical else 1.0)

    def bounded(self, inner: Tensor) -> Tensor:
        """u: the token itself, or its direction."""
        return nn.functional.normalize(inner, dim=-1) if self.spherical else inner

    def snap(self, inner: Tensor) -> GridCodes:
        u = self.bounded(inner)
        positive = inner > 0
        indices = torch.where(positive, self.place_values, 0).sum(-1)
        return GridCodes(u + (self._signs(positive) - u).detach(), indices)

    def forward(self, z: Tensor) -> LevelOutput:
        """Signs: (n, dim) float32 -> LevelOutput with parts distortion, commitment, token_entropy mean_n H(q_n) and mean_entropy
        H(mean_n q_n) in nats."""
        inner = self.project_in(z)
        snapped = self.snap(inner)
        u = self.bounded(inner)
        commitment = (u - snapped.values.detach()).square().mean()
        soft = soft_assign(u, self.grid, 1.0 / self.inverse_temperature)
        token_entropy, mean_entropy = soft.entropy.mean(), entropy_of(soft.mean_assignment)
        loss = self.commitment_weight * commitment
        if self.entropy_weight:
            loss = loss + self.entropy_weight * (token_entropy - self.diversity * mean_entropy)
        parts = {"commitment": commitment, "token_entropy": token_entropy, "mean_entropy": mean_entropy}
        return replace(self.level_output(z, snapped, loss, parts), mean_assignment=soft.mean_assignment.detach())

    def settings(self) -> dict[str, Any]:
        return {
            "entropy_weight": self.entropy_weight,
            "diversity": self.diversity,
            "commitment_weight": self.commitment_weight,
            "inverse_temperature": self.inverse_temperature,
        }


class BSQCodebook(LFQCodebook):
    """One level of binary spherical quantization: tokens and codes lie on the unit sphere.

    Args:
        entropy_weight: weight of the entropy penalty.
        diversity: weight of the entropy of the mean assignment within the penalty.
        commitment_weight: weight of the squared distance from token to code.
        inverse_temperature: sharpness of the assignment that the penalty looks at.
    """

    kind = "bsq"
    spherical = True

"""SimVQ: a fixed random codebook seen through one learned linear map, so that every code moves at every step.

Source: Zhu et al., "Addressing Representation Collapse in Vector Quantized Models with One Linear Layer" (arXiv:2411.02038), through
`vector_quantize_pytorch.SimVQ`.

    codes = W c, c fixed        loss = commitment_weight mean (z - sg(code))^2 + mean (sg(z) - code)^2
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vqlab.fused import nearest
from vqlab.quantizers.base import Codebook, LevelOutput
from vqlab.quantizers.peers.library import load_library


class SimVQCodebook(Codebook):
    """One level of SimVQ.

    Args:
        commitment_weight: weight of the encoder's term.
        rotation: pass gradients by the rotation trick instead of straight through.
    """

    kind = "simvq"
    part_names = ("distortion", "commitment")

    def __init__(self, dim: int, codebook_size: int, *, commitment_weight: float = 0.25, rotation: bool = True) -> None:
        super().__init__(dim, codebook_size)
        if not 0 <= commitment_weight < float("inf"):
            raise ValueError(f"commitment_weight must be finite and not negative, got {commitment_weight}")
        self.commitment_weight, self.rotation = commitment_weight, rotation
        self.simvq = load_library(self.kind).SimVQ(
            dim, codebook_size, rotation_trick=rotation, input_to_quantize_commit_loss_weight=commitment_weight
        )

    @property
    def codes(self) -> Tensor:
        return self.simvq.codebook

    def encode(self, z: Tensor) -> Tensor:
        if torch.compiler.is_exporting():  # the library's search is for a fixed number of tokens
            return nearest(z, self.codes)
        return self.simvq(z[None])[1][0] if z.shape[0] else z.new_zeros(0, dtype=torch.int64)

    def forward(self, z: Tensor) -> LevelOutput:
        """Nearest codes: (n, dim) float32 -> LevelOutput with parts distortion (mean squared distance) and commitment (per dimension)."""
        if not z.shape[0]:  # the library cannot
            zero = z.new_zeros(())
            return LevelOutput(z, z.new_zeros(0, dtype=torch.int64), zero, {"distortion": zero, "commitment": zero})
        quantized, indices, loss = (out[0] if out.dim() else out for out in self.simvq(z[None]))
        commitment = (z - quantized).detach().square().mean()
        return LevelOutput(quantized, indices, loss, {"distortion": commitment * self.dim, "commitment": commitment})

    def freeze(self, frozen: bool = True) -> None:
        super().freeze(frozen)
        self.simvq.code_transform.requires_grad_(not frozen)

    def codebook_parameters(self) -> list[nn.Parameter]:
        return list(self.simvq.code_transform.parameters())

    def settings(self) -> dict[str, Any]:
        return {"commitment_weight": self.commitment_weight, "rotation": self.rotation}

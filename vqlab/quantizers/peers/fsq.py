"""Finite scalar quantization: each dimension rounded to a few levels.

Source: Mentzer et al., "Finite Scalar Quantization: VQ-VAE Made Simple" (arXiv:2309.15505), through `vector_quantize_pytorch.FSQ`.

    u = f(z) bounded to (-L/2, L/2) by tanh, per dimension          code = round(u) with straight-through gradient
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from vqlab.quantizers.base import LevelOutput
from vqlab.quantizers.peers.implicit import GridCodes, ImplicitCodebook
from vqlab.quantizers.peers.library import load_library

#: Fewest and most levels of one dimension.
FEWEST, MOST = 3, 8


@cache
def fsq_levels(codebook_size: int) -> tuple[int, ...]:
    """Levels per dimension whose product is `codebook_size`, each from 3 to 8, in falling order.

    The fewest dimensions, and of those the largest least level: it gives every row of table 1 of the paper (8x6x5 for 240, 8x5x5x5 for
    1000, 7x5x5x5x5 for 4375, ...), and 8x8x8 for 512. Raises ValueError for a size that has no such factors.
    """

    def factorisations(rest: int, largest: int) -> list[tuple[int, ...]]:
        if rest == 1:
            return [()]
        return [
            (level, *others)
            for level in range(min(largest, rest), FEWEST - 1, -1)
            if rest % level == 0
            for others in factorisations(rest // level, level)
        ]

    found = [levels for levels in factorisations(codebook_size, MOST) if levels]
    if not found:
        raise ValueError(
            f"codebook_size of fsq must be a product of levels from {FEWEST} to {MOST} (64, 240, 512, 1000, 2048, 4096, 8192, ...), "
            f"got {codebook_size}"
        )
    return min(found, key=lambda levels: (len(levels), -min(levels), levels))


class FSQCodebook(ImplicitCodebook):
    """One level of finite scalar quantization; nothing is learned but the maps to and from the grid, where there are any."""

    kind = "fsq"
    part_names = ("distortion",)

    def __init__(self, dim: int, codebook_size: int) -> None:
        super().__init__(dim, codebook_size)
        with torch.device("cpu"):  # the library reads its own tensors, which the device "meta" does not allow
            self.fsq = load_library(self.kind).FSQ(levels=list(fsq_levels(codebook_size)))

    @classmethod
    def default_dim(cls, codebook_size: int) -> int:
        return len(fsq_levels(codebook_size))

    @property
    def grid(self) -> Tensor:  # type: ignore[override]
        return self.fsq.implicit_codebook

    def snap(self, u: Tensor) -> GridCodes:
        values, indices = self.fsq(u[None])
        return GridCodes(values[0], indices[0].to(torch.int64))

    def forward(self, z: Tensor) -> LevelOutput:
        """Rounded codes: (n, dim) float32 -> LevelOutput without a loss of its own."""
        return self.level_output(z, self.snap(self.project_in(z)), z.new_zeros(()), {})

    def settings(self) -> dict[str, Any]:
        return {}

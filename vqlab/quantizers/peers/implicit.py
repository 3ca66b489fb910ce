"""Codebooks that are a fixed grid instead of learned vectors: what FSQ, LFQ and BSQ have in common."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from vqlab.quantizers.base import Codebook, LevelOutput


class GridCodes(NamedTuple):
    """`values` (n, grid_dim): codes on the grid, with the gradient of the estimator; `indices` (n,) int64."""

    values: Tensor
    indices: Tensor


class ImplicitCodebook(Codebook):
    """A fixed grid of `codebook_size` points in `default_dim(codebook_size)` dimensions.

    Tokens of another dimension pass a linear map to the grid and another one back, and ids then decode to the images of the grid's points.
    One grid has one scale: what a level leaves lies inside one cell, so that a stack of equal grids gains nothing (`stackable`).
    """

    stackable = False
    grid: Tensor

    def __init__(self, dim: int, codebook_size: int) -> None:
        super().__init__(dim, codebook_size)
        self.grid_dim = self.default_dim(codebook_size)
        same = dim == self.grid_dim
        self.project_in = nn.Identity() if same else nn.Linear(dim, self.grid_dim)
        self.project_out = nn.Identity() if same else nn.Linear(self.grid_dim, dim)

    @property
    def codes(self) -> Tensor:
        return self.project_out(self.grid)

    def snap(self, u: Tensor) -> GridCodes:
        """Tokens to points of the grid: (n, grid_dim) -> GridCodes."""
        raise NotImplementedError

    def encode(self, z: Tensor) -> Tensor:
        return self.snap(self.project_in(z)).indices

    def level_output(self, z: Tensor, snapped: GridCodes, loss: Tensor, parts: dict[str, Tensor]) -> LevelOutput:
        """What `forward` returns; adds the part distortion, the mean squared distance from token to code."""
        quantized = self.project_out(snapped.values)
        distortion = (z - quantized).square().sum(-1).mean()
        return LevelOutput(quantized, snapped.indices, loss, {name: x.detach() for name, x in {"distortion": distortion, **parts}.items()})

    def freeze(self, frozen: bool = True) -> None:
        super().freeze(frozen)
        for parameter in self.codebook_parameters():
            parameter.requires_grad_(not frozen)

    def codebook_parameters(self) -> list[nn.Parameter]:
        return [*self.project_in.parameters(), *self.project_out.parameters()]

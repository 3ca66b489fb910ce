"""A pyramid of codebooks: coarse grids first, each level quantizes what the coarser ones left.

    z (h, w) --> [mean over 4x4] --> [level 1] --c1, repeated 4x4--+
                                                                   v
    z - c1   --> [mean over 2x2] --> [level 2] --c2, repeated 2x2--+-->  quantized = c1 + c2 + ... + the last q
                                                                   ^
    z - c1 - c2 -------------------> [level 3] ------- q3 ---------+

Three levels on an 8x8 map: 2x2, 4x4 and 8x8 tokens, 4 + 16 + 64 ids. As in a residual stack the next level sees what the *codes* left, so
that only the last level is soft. Means and repetition make coarse levels exact projections: without quantization error a level leaves
nothing that a coarser one could have said. Sources: Razavi et al., VQ-VAE-2 (arXiv:1906.00446); Tian et al., VAR (arXiv:2404.02905),
algorithms 1 and 2, with interpolation and a convolution in place of the repetition.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from vqlab.precision import without_autocast
from vqlab.quantizers.base import Codebook, QuantizerOutput
from vqlab.quantizers.stack import Quantizer


class PyramidQuantizer(Quantizer):
    """Levels of codebooks on grids that double from level to level, on feature maps (b, dim, h, w).

    Level l of L has a cell of r x r places, r = 2^(L-l), hence ceil(h / r) x ceil(w / r) tokens; cells at the border may be cut off.
    Ids keep the layout of all stacks, (b, h, w, levels): entry (i, j, l) is the id of the cell of level l that covers place (i, j), so that
    coarse ids repeat; `cell_ids` gives each id once. Raises ValueError for sequences, which have no coarser grid.
    """

    def __init__(self, dim: int, levels: Sequence[Codebook], *, normalize: bool = True) -> None:
        super().__init__(dim, levels, topology="residual", normalize=normalize)
        self.topology = "pyramid"

    def cell(self, level: int) -> int:
        """Side of the cells of a level (0-based), in places of the finest grid."""
        return 2 ** (self.num_levels - 1 - level)

    @property
    def bits_per_token(self) -> float:
        """Bits of all levels over the tokens of the finest, where the grid divides into all cells."""
        return sum(math.log2(size) / self.cell(level) ** 2 for level, size in enumerate(self.codebook_sizes))

    def tokens_per_level(self, grid: Sequence[int]) -> list[int]:
        return [math.prod(-(-side // self.cell(level)) for side in grid) for level in range(self.num_levels)]

    # -- the three operations ---------------------------------------------------------------------------------------------------

    def forward(self, x: Tensor) -> QuantizerOutput:
        with without_autocast(x.device):
            z = self._enter_map(x)
            # base: the codes of the levels so far.  left: what they left of z.
            base, left, outputs, prefixes, ids = torch.zeros_like(z), z, [], [], []
            straight_through = False
            for l, level in enumerate(self.codebooks):
                rest = self._means(left, l)
                out = level(_tokens(rest.detach() if straight_through and level.is_soft else rest))
                outputs.append(out)
                quantized = self._repeat(_grid(out.quantized, rest), z, l)
                code = self._repeat(_grid(F.embedding(out.indices, level.codes), rest), z, l)
                if level.is_soft:
                    # The choice of the code is constant, the code is not: prototypes learn from what comes after.
                    total, base, left = base + quantized, base + code, left - code
                else:
                    # Straight through the sum so far; the code itself is a constant, so that later commitments reach the encoder.
                    straight_through = True
                    total = base = z + (base + code - z).detach()
                    left = left - code.detach()
                prefixes.append(self._leave(_tokens(total), x))
                ids.append(self._repeat(_grid(out.indices[:, None], rest), z, l)[:, 0])
            return QuantizerOutput(
                quantized=prefixes[-1],
                indices=torch.stack(ids, -1),
                loss=torch.stack([out.loss for out in outputs]).sum(),
                parts=tuple(out.parts for out in outputs),
                mean_assignment=tuple(out.mean_assignment for out in outputs),
                prefixes=tuple(prefixes),
            )

    @torch.no_grad()
    def encode(self, x: Tensor, levels: int | None = None) -> Tensor:
        levels = self._check_levels(levels)
        with without_autocast(x.device):
            z = self._enter_map(x, update=False)
            base, ids = torch.zeros_like(z), []
            for l, level in enumerate(self.codebooks[:levels]):
                rest = self._means(z - base, l)
                chosen = level.encode(_tokens(rest))
                base = base + self._repeat(_grid(F.embedding(chosen, level.codes), rest), z, l)
                ids.append(self._repeat(_grid(chosen[:, None], rest), z, l)[:, 0])
            return torch.stack(ids, -1)

    def decode_indices(self, indices: Tensor) -> Tensor:
        """Ids of the first 1 .. num_levels levels to vectors: (b, h, w, levels) -> (b, dim, h, w).

        Raises ValueError for an id outside 0..codebook_size-1, a wrong number of levels, or ids that differ within a cell.
        """
        if indices.dim() != 4:
            raise ValueError(f"indices of a pyramid must be (b, h, w, levels), got shape {tuple(indices.shape)}")
        levels = self._check_levels(indices.shape[-1])
        for l in range(levels if not torch.compiler.is_exporting() else 0):  # a graph cannot branch on values
            ids = indices[..., l]
            if not torch.equal(self._repeat(self._first(ids, l)[:, None], ids[:, None], l)[:, 0], ids):
                raise ValueError(f"ids of level {l + 1} must be equal within each cell of {self.cell(l)}x{self.cell(l)} places")
        return super().decode_indices(indices)

    def cell_ids(self, indices: Tensor) -> list[Tensor]:
        """Each id once, coarse levels first: (b, h, w, levels) -> one (b, h_l, w_l) for each level."""
        return [self._first(indices[..., l], l) for l in range(indices.shape[-1])]

    # -- grids ------------------------------------------------------------------------------------------------------------------

    def _enter_map(self, x: Tensor, update: bool = True) -> Tensor:
        if x.dim() != 4:
            raise ValueError(f"a pyramid needs maps (b, {self.dim}, h, w), got shape {tuple(x.shape)}")
        tokens = self._enter(x, update)
        return tokens.view(x.shape[0], *x.shape[2:], self.codebook_dim).movedim(-1, 1)

    def _means(self, rest: Tensor, level: int) -> Tensor:
        """Means over the cells of a level: (b, d, h, w) -> (b, d, h_l, w_l); cells at the border count the places they have."""
        cell = self.cell(level)
        return rest if cell == 1 else F.avg_pool2d(rest, cell, ceil_mode=True, count_include_pad=False)

    def _repeat(self, coarse: Tensor, fine: Tensor, level: int) -> Tensor:
        """Every place of the finest grid gets the value of its cell: (b, d, h_l, w_l) -> (b, d, h, w)."""
        cell = self.cell(level)
        if cell == 1:
            return coarse
        return coarse.repeat_interleave(cell, 2).repeat_interleave(cell, 3)[..., : fine.shape[2], : fine.shape[3]]

    def _first(self, ids: Tensor, level: int) -> Tensor:
        return ids[:, :: self.cell(level), :: self.cell(level)]


def _tokens(grid: Tensor) -> Tensor:
    """(b, d, h, w) -> (b h w, d)"""
    return grid.movedim(1, -1).reshape(-1, grid.shape[1])


def _grid(tokens: Tensor, like: Tensor) -> Tensor:
    """(b h w, d) -> (b, d, h, w), h and w of `like`."""
    return tokens.view(like.shape[0], *like.shape[2:], tokens.shape[1]).movedim(-1, 1)

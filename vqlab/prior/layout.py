"""Ids of an image as one sequence: raster order within a level, one level after the other, coarse levels first.

    ids (b, h, w, levels) --> sequence (b, length), with the ids of level l shifted by K_1 + ... + K_{l-1}

A position tells its level, so every position has its own K_l possible ids and no probability is lost on others. A cascade decodes from
its last level alone; only that one is part of the sequence. In a pyramid the id of a coarse cell repeats over the cell's places; the
sequence has it once (the order of scales of VAR, arXiv:2404.02905). Tokens that are a sequence, (b, n, levels), keep their order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vqlab.errors import VqlabError
from vqlab.quantizers import Quantizer


@dataclass(frozen=True)
class Layout:
    """height, width: of the grid, 1 and n of a sequence.  codebook_sizes: codes of each level in the sequence.

    skipped: levels before them that are left out.  pyramid: whether grids double from level to level.  sequential: whether ids come
    as (b, n, levels).
    """

    height: int
    width: int
    codebook_sizes: tuple[int, ...]
    skipped: int = 0
    pyramid: bool = False
    sequential: bool = False

    @classmethod
    def of(cls, quantizer: Quantizer, *grid: int) -> Layout:
        """The layout of a quantizer's ids on a grid (h, w) or of a sequence (n,); VqlabError for one without ids."""
        sizes = tuple(quantizer.codebook_sizes)
        if not sizes:
            raise VqlabError("a tokenizer without a quantizer has no ids to model")
        skipped = len(sizes) - 1 if quantizer.topology == "cascade" else 0
        height, width = grid if len(grid) == 2 else (1, *grid)
        return cls(height, width, sizes[skipped:], skipped, quantizer.topology == "pyramid", len(grid) == 1)

    @property
    def places(self) -> int:
        """Places of the finest grid."""
        return self.height * self.width

    @property
    def places_by_level(self) -> tuple[int, ...]:
        """Ids of one image at each level."""
        return tuple(math.prod(self.grid(level)) for level in range(len(self.codebook_sizes)))

    @property
    def length(self) -> int:
        """Ids of one image."""
        return sum(self.places_by_level)

    @property
    def vocabulary(self) -> int:
        """Different ids over all levels."""
        return sum(self.codebook_sizes)

    def cell(self, level: int) -> int:
        """Side of a level's cells, in places of the finest grid."""
        return 2 ** (len(self.codebook_sizes) - 1 - level) if self.pyramid else 1

    def grid(self, level: int) -> tuple[int, int]:
        """Rows and columns of a level (0-based)."""
        cell = self.cell(level)
        return -(-self.height // cell), -(-self.width // cell)

    def level_of(self, position: int) -> int:
        """Level (0-based) of a position of the sequence."""
        for level, places in enumerate(self.places_by_level):
            if position < places:
                return level
            position -= places
        raise IndexError(f"the sequence has {self.length} positions")

    def span(self, level: int) -> tuple[int, int]:
        """First shifted id of a level (0-based) and the one after its last."""
        start = sum(self.codebook_sizes[:level])
        return start, start + self.codebook_sizes[level]

    def by_level(self, sequence: Tensor) -> tuple[Tensor, ...]:
        """Parts of a sequence (..., length) that belong to each level."""
        return sequence.split(self.places_by_level, -1)

    def flatten(self, ids: Tensor) -> Tensor:
        """Ids (b, h, w, all levels), or (b, n, all levels), to sequences (b, length) int64 of shifted ids."""
        grid = (self.width,) if self.sequential else (self.height, self.width)
        kept = ids[..., self.skipped :].long()
        if kept.shape[1:] != (*grid, len(self.codebook_sizes)):
            raise ValueError(f"expected ids (b, {', '.join(map(str, grid))}, levels), got shape {tuple(ids.shape)}")
        maps = kept.view(len(kept), self.height, self.width, -1)
        parts = []
        for level in range(len(self.codebook_sizes)):
            cell = self.cell(level)
            parts.append(maps[:, ::cell, ::cell, level].flatten(1) + self.span(level)[0])
        return torch.cat(parts, 1)

    def unflatten(self, sequence: Tensor) -> Tensor:
        """The inverse of `flatten`; levels that were left out come back as id 0, which no cascade decodes."""
        levels = [sequence.new_zeros(len(sequence), self.height, self.width)] * self.skipped
        for level, part in enumerate(self.by_level(sequence)):
            cell = self.cell(level)
            grid = (part - self.span(level)[0]).view(-1, *self.grid(level))
            levels.append(grid.repeat_interleave(cell, 1).repeat_interleave(cell, 2)[:, : self.height, : self.width])
        ids = torch.stack(levels, -1)
        return ids[:, 0] if self.sequential else ids

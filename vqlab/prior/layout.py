"""Grids of ids as sequences: raster order within a level, one level after the other.

    ids (b, h, w, levels) --> sequence (b, levels h w), with the ids of level l shifted by K_1 + ... + K_{l-1}

A position tells its level, so every position has its own K_l possible ids and no probability is lost on others. A cascade decodes from
its last level alone; only that one is part of the sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vqlab.errors import VqlabError
from vqlab.quantizers import Quantizer


@dataclass(frozen=True)
class Layout:
    """height, width: of the grid.  codebook_sizes: codes of each level in the sequence.  skipped: levels before them that are left out."""

    height: int
    width: int
    codebook_sizes: tuple[int, ...]
    skipped: int = 0

    @classmethod
    def of(cls, quantizer: Quantizer, height: int, width: int) -> Layout:
        """The layout of a quantizer's ids on a grid; VqlabError for one without ids."""
        sizes = tuple(quantizer.codebook_sizes)
        if not sizes:
            raise VqlabError("a tokenizer without a quantizer has no ids to model")
        skipped = len(sizes) - 1 if quantizer.topology == "cascade" else 0
        return cls(height, width, sizes[skipped:], skipped)

    @property
    def places(self) -> int:
        """Places of the grid."""
        return self.height * self.width

    @property
    def length(self) -> int:
        """Ids of one image."""
        return self.places * len(self.codebook_sizes)

    @property
    def vocabulary(self) -> int:
        """Different ids over all levels."""
        return sum(self.codebook_sizes)

    def span(self, level: int) -> tuple[int, int]:
        """First shifted id of a level (0-based) and the one after its last."""
        start = sum(self.codebook_sizes[:level])
        return start, start + self.codebook_sizes[level]

    @property
    def places_by_level(self) -> tuple[int, ...]:
        """Ids of one image at each level."""
        return (self.places,) * len(self.codebook_sizes)

    def by_level(self, sequence: Tensor) -> tuple[Tensor, ...]:
        """Parts of a sequence (..., length) that belong to each level."""
        return sequence.split(self.places_by_level, -1)

    def flatten(self, ids: Tensor) -> Tensor:
        """Ids (b, h, w, all levels) to sequences (b, length) int64 of shifted ids."""
        kept = ids[..., self.skipped :].long()
        if kept.shape[1:] != (self.height, self.width, len(self.codebook_sizes)):
            raise ValueError(f"expected ids (b, {self.height}, {self.width}, levels), got shape {tuple(ids.shape)}")
        starts = torch.tensor([self.span(level)[0] for level in range(len(self.codebook_sizes))], device=ids.device)
        return (kept + starts).permute(0, 3, 1, 2).flatten(1)

    def unflatten(self, sequence: Tensor) -> Tensor:
        """The inverse of `flatten`; levels that were left out come back as id 0, which no cascade decodes."""
        levels = sequence.view(-1, len(self.codebook_sizes), self.height, self.width).permute(0, 2, 3, 1)
        starts = torch.tensor([self.span(level)[0] for level in range(len(self.codebook_sizes))], device=sequence.device)
        ids = levels - starts
        return torch.cat([ids.new_zeros(*ids.shape[:-1], self.skipped), ids], -1)

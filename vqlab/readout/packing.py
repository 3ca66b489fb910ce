"""Sequences of different lengths without their padding: what is dropped before a layer cannot influence it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Packing:
    """Where the real tokens of a padded batch stand.

    mask: (b, n) bool, True at real tokens.  sequence: (N,) int64, which sequence each of the N real tokens belongs to, ascending.
    lengths: (b,) int64, at least 1.
    """

    mask: Tensor
    sequence: Tensor
    lengths: Tensor

    def pack(self, x: Tensor) -> Tensor:
        """Real tokens alone: (b, n, ...) -> (N, ...)."""
        return x[self.mask]

    def unpack(self, tokens: Tensor, fill: float = 0.0) -> Tensor:
        """Back to the padded layout with `fill` at padding: (N, ...) -> (b, n, ...)."""
        out = tokens.new_full((*self.mask.shape, *tokens.shape[1:]), fill)
        out[self.mask] = tokens
        return out

    def mean(self, tokens: Tensor) -> Tensor:
        """Mean over the real tokens of each sequence: (N, c) -> (b, c)."""
        sums = tokens.new_zeros(self.lengths.numel(), tokens.shape[1]).index_add(0, self.sequence, tokens)
        return sums / self.lengths[:, None]


def packing_of(tokens: Tensor, mask: Tensor | None) -> Packing:
    """Packing of tokens (b, n, d) under a mask (b, n): bool or 0/1 numbers, 1 at real tokens as in Hugging Face; None means no padding.

    Raises ValueError for tokens that are not (b, n, d), a mask of another shape or with other values, and a sequence without any token.
    """
    if tokens.dim() != 3:
        raise ValueError(f"tokens must be (b, n, d), got shape {tuple(tokens.shape)}")
    if mask is None:
        real = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
    else:
        if mask.shape != tokens.shape[:2]:
            raise ValueError(f"the mask of tokens {tuple(tokens.shape)} must be {tuple(tokens.shape[:2])}, got {tuple(mask.shape)}")
        real = mask.bool()
        if mask.dtype != torch.bool and not bool((mask == real).all()):
            raise ValueError("a mask holds True or 1 at real tokens and False or 0 at padding, nothing else")
    lengths = real.sum(1)
    if lengths.numel() == 0 or int(lengths.min()) == 0:
        raise ValueError("every sequence needs at least one real token")
    sequence = torch.arange(len(lengths), device=tokens.device).repeat_interleave(lengths)
    return Packing(real, sequence, lengths)

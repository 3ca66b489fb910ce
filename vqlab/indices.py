"""What an index of a code may be."""

from __future__ import annotations

import torch
from torch import Tensor


def check_indices(indices: Tensor, codebook_size: int) -> None:
    """Raise ValueError unless all indices, of any shape, are integers in 0..codebook_size-1 (never a wrap-around)."""
    if indices.is_floating_point() or indices.is_complex() or indices.dtype == torch.bool:
        raise ValueError(f"indices must be integers, got {indices.dtype}")
    if indices.numel() == 0 or torch.compiler.is_exporting():  # a graph cannot branch on values
        return
    lowest, highest = torch.stack(indices.detach().aminmax()).tolist()  # one wait for the device, not two
    if lowest < 0 or highest >= codebook_size:
        raise ValueError(f"indices must lie in 0..{codebook_size - 1}, got {lowest}..{highest}")

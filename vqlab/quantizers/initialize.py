"""Starting codebooks: random, a sample of the first batch, or k-means on it."""

from __future__ import annotations

import torch
from torch import Tensor

from vqlab.distributed import broadcast_from, own_rank, rank_with_most
from vqlab.fused import nearest

INITIALIZATIONS = ("kmeans", "data", "random")


def _distinct(codes: Tensor, scale: Tensor) -> Tensor:
    """Add noise far below the data's scale to repeated rows, so that no two codes start merged."""
    size = scale.clamp_min(1e-3) * 0.01
    while True:
        _, inverse, counts = torch.unique(codes, dim=0, return_inverse=True, return_counts=True)
        repeated = counts[inverse] > 1
        if not bool(repeated.any()):
            return codes
        codes = torch.where(repeated[:, None], codes + torch.randn_like(codes) * size, codes)
        size = size * 2  # large values round small noise away


def sample_tokens(z: Tensor, count: int, generator: torch.Generator | None = None) -> Tensor:
    """`count` tokens of z (n, d), n >= 1, without replacement while they last, then all of them again; `generator` is a CPU one."""
    picks = [torch.randperm(z.shape[0], generator=generator) for _ in range(-(-count // z.shape[0]))]
    return z[torch.cat(picks)[:count].to(z.device)]


def kmeans(z: Tensor, codes: Tensor, iterations: int = 10) -> Tensor:
    """Lloyd's iterations from `codes` (k, d) on z (n, d); a centre without tokens moves to the token farthest from its own centre."""
    for _ in range(iterations):
        ids = nearest(z, codes)
        counts = torch.zeros(codes.shape[0], device=z.device, dtype=z.dtype).index_add_(0, ids, z.new_ones(z.shape[0]))
        sums = torch.zeros_like(codes).index_add_(0, ids, z)
        distance = (z - codes[ids]).square().sum(-1)
        empty = (counts == 0).nonzero().flatten()
        codes = torch.where((counts > 0)[:, None], sums / counts.clamp_min(1)[:, None], codes)
        moved = min(empty.numel(), z.shape[0])
        codes[empty[:moved]] = z[distance.topk(moved).indices]
    return codes


@torch.no_grad()
def initial_codes(z: Tensor, codebook_size: int, method: str) -> Tensor:
    """A starting codebook from tokens: (n, d) -> (codebook_size, d), rows distinct; the same on all ranks, from the one with most tokens.

    Fewer tokens than codes are repeated with small noise. Raises ValueError for an unknown method or no tokens on any rank.
    """
    if method not in ("kmeans", "data"):
        raise ValueError(f"initialisation from data must be 'kmeans' or 'data', got {method!r}")
    source = rank_with_most(z.shape[0], z.device)
    if source is None:
        raise ValueError("cannot initialise a codebook from a batch without tokens")
    if source != own_rank():
        return broadcast_from(source, z.new_empty(codebook_size, z.shape[1], dtype=torch.float32))
    z = z.detach().float()
    scale = z.std(0, correction=0)
    codes = _distinct(sample_tokens(z, codebook_size), scale)
    if method == "kmeans" and z.shape[0] > codebook_size:
        codes = _distinct(kmeans(z, codes), scale)
    return broadcast_from(source, codes.contiguous())

"""Several processes with one model: sums over all of them, and errors that reach all of them.

A process that raises while the others wait for it in a collective operation leaves them hanging; what may go wrong on one rank alone is
therefore told to all ranks first (`any_rank`), and each raises.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def several_ranks() -> bool:
    """Whether this process is one of several that train together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


class _Sum(torch.autograd.Function):
    """y_r = sum_s x_s on every rank r, hence dL/dx_s = sum_r dL_r/dy_r: the same sum of the gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


def sum_over_ranks(x: Tensor) -> Tensor:
    """The sum of x over all ranks, same shape on each, with gradients; x itself where there is one process."""
    if not several_ranks():
        return x
    total: Tensor = _Sum.apply(x)
    return total


def any_rank(*happened: bool, device: torch.device) -> list[bool]:
    """Whether each of these things happened on some rank; all ranks must ask together."""
    if not several_ranks():
        return list(happened)
    flags = torch.tensor(happened, dtype=torch.int32, device=device)
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    return [bool(flag) for flag in flags.tolist()]


def rank_with_most(count: int, device: torch.device) -> int | None:
    """The rank whose `count` is the largest, the first of equals; None if it is 0 everywhere. All ranks must ask together."""
    if not several_ranks():
        return 0 if count else None
    counts = torch.zeros(dist.get_world_size(), dtype=torch.int64, device=device)
    counts[dist.get_rank()] = count
    dist.all_reduce(counts)
    return int(counts.argmax()) if bool(counts.any()) else None


def broadcast_from(source: int, x: Tensor) -> Tensor:
    """x of rank `source` on all ranks, in place; the shape must be the same everywhere."""
    if several_ranks():
        dist.broadcast(x, src=source)
    return x


def own_rank() -> int:
    """The number of this process, 0 where there is one."""
    return dist.get_rank() if several_ranks() else 0


def gather_bytes(x: Tensor) -> list[Tensor]:
    """x, of the same shape and type on all ranks, of every rank in order, on the CPU; all ranks must ask together."""
    if not several_ranks():
        return [x]
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    everyone = [torch.empty_like(x, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, x.to(device))
    return [each.cpu() for each in everyone]

"""Soft assignment and nearest-code search without the n x k matrix: blocked, exact gradients for z, p and T.

Expanding d_nk = ||z_n||^2 - 2 z_n.p_k + ||p_k||^2, the term ||z_n||^2 cancels in the softmax, so a DDCL layer is attention with

    logit s_nk = (2 z_n.p_k - ||p_k||^2) / T      q_n = softmax_k(s_nk)      values [p_k, ||p_k||^2]

and mu_n = E_q p, E_q||p||^2 (hence V_n = E_q||p||^2 - ||mu_n||^2) are one weighted sum over the values. The blocked pass below returns,
beside that sum, what a fused attention kernel does not: the log-partition (hence H(q_n)), the mean assignment over tokens, and the
argmax. Where the matrix is small it is kept for the backward pass, else each block of it is computed again there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vqlab.assignment import SoftAssignment, check_temperature


class BlockSize(NamedTuple):
    """elements: logits of one block.  rows: tokens that a block holds at least, so that each pass over all codes serves many."""

    elements: int
    rows: int


# On CPUs a block of 2^18 logits (1 MiB) stays in a core's cache, which makes the element-wise passes several times faster.
CPU_BLOCK = BlockSize(elements=1 << 18, rows=64)
# Elsewhere a block must be large enough to fill the device: 128 MiB.
DEVICE_BLOCK = BlockSize(elements=1 << 25, rows=64)
#: Up to so many logits (32 MiB in float32) the assignment is kept for the backward pass instead of being computed twice.
KEPT_ELEMENTS = 1 << 23


def _rows_per_block(n: int, k: int, device: torch.device, elements: int | None) -> int:
    """Tokens per block; `elements` overrides the device's own choice."""
    size = CPU_BLOCK if device.type == "cpu" else DEVICE_BLOCK
    rows = max(size.rows, size.elements // k) if elements is None else elements // k
    return max(1, min(n, rows))


def _row_blocks(n: int, rows: int) -> list[slice]:
    return [slice(start, min(start + rows, n)) for start in range(0, n, rows)]


class RowMaximum(NamedTuple):
    """Largest entry of each row `values` (n,), where it stands first, `position` (n,) int64, and whether another entry comes as close
    to it as the margin, `contested` (n,) bool."""

    values: Tensor
    position: Tensor
    contested: Tensor


def maximum_rows(s: Tensor, margin: Tensor | float = 0.0, group: int = 32) -> RowMaximum:
    """Maximum and first argmax of each row, (n, k); margin: (n,) or a number.

    Groups of columns first, since `amax` is vectorised on CPUs and `argmax` is not.
    """
    n, k = s.shape
    if k % group or k <= group:
        values, position = s.max(-1)
        return RowMaximum(values, position, (s >= (values - margin)[:, None]).sum(-1) > 1)
    groups = s.view(n, k // group, group)
    largest = groups.amax(-1)
    values, best = largest.max(-1)
    chosen = groups[torch.arange(n, device=s.device), best]
    close = (values - margin)[:, None]
    contested = ((largest >= close).sum(-1) > 1) | ((chosen >= close).sum(-1) > 1)
    return RowMaximum(values, best * group + chosen.argmax(-1), contested)


def _rounding_margin(zc: Tensor, square: Tensor) -> Tensor:
    """Largest difference of two values 2 z.p - ||p||^2 that rounding alone may cause: (n, d), (k,) -> (n,)."""
    largest = square.amax()
    scale = 2.0 * zc.square().sum(-1).sqrt() * largest.sqrt() + largest
    return (zc.shape[1] + 4) * torch.finfo(zc.dtype).eps * scale


@torch.no_grad()
def _settle(indices: Tensor, contested: Tensor, z: Tensor, p: Tensor) -> Tensor:
    """Ids (n,), those of contested tokens found again in float64.

    A graph cannot branch on values: inside `torch.compile` ids are left as float32 has them.
    """
    if z.dtype == torch.float64 or torch.compiler.is_compiling():
        return indices
    unsure = contested.nonzero()[:, 0]
    if not unsure.numel():
        return indices
    place = torch.device("cpu") if z.device.type == "mps" else z.device  # MPS has no float64
    zc, pc = z[unsure].to(place).double(), p.to(place).double()
    centre = pc.mean(0)
    zc, pc = zc - centre, pc - centre
    half_square = 0.5 * pc.square().sum(-1)
    rows = _rows_per_block(zc.shape[0], p.shape[0], place, None)
    found = [(block @ pc.T).sub_(half_square).argmax(-1) for block in zc.split(rows)]
    return indices.index_copy(0, unsure, torch.cat(found).to(indices.device))


class _SoftAssign(torch.autograd.Function):
    """The fields of `SoftAssignment` from z (n, d), p (k, d), T (); `kept`: whether q is stored for the backward pass."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, p: Tensor, temperature: Tensor, rows: int, kept: bool) -> tuple[Tensor, ...]:
        n, k = z.shape[0], p.shape[0]
        # With mean(p) subtracted nothing changes in exact arithmetic, and cancellation under a common offset disappears.
        centre = p.mean(0)
        zc, pc = z - centre, p - centre
        square = pc.square().sum(-1)
        key, bias = pc * (2.0 / temperature), square / -temperature
        margin = _rounding_margin(zc, square) / temperature

        mu, mean_square, top_logit, top_share = torch.empty_like(zc), z.new_empty(n), z.new_empty(n), z.new_empty(n)
        position = torch.empty(n, dtype=torch.int64, device=z.device)
        contested = torch.empty(n, dtype=torch.bool, device=z.device)
        total, ones = z.new_zeros(k), z.new_ones(rows)
        assignment = z.new_empty(n if kept else rows, k)
        for block in _row_blocks(n, rows):
            size = block.stop - block.start
            q = assignment[block] if kept else assignment[:size]
            torch.addmm(bias, zc[block], key.T, out=q)
            top_logit[block], position[block], contested[block] = maximum_rows(q, margin[block])
            torch.softmax(q, -1, out=q)
            top_share[block] = q.gather(1, position[block, None])[:, 0]
            torch.mm(q, pc, out=mu[block])
            torch.mv(q, square, out=mean_square[block])
            total.addmv_(q.T, ones[:size])

        # The largest share is exp(top - lse), so the log-sum-exp needs no pass of its own.
        surprise = -top_share.log()
        lse = top_logit + surprise
        spread = mean_square - mu.square().sum(-1)
        # H = lse - E[logit], both relative to the nearest prototype's logit: logits are large at a low temperature and would cancel.
        below = 2.0 * (zc * (mu - pc[position])).sum(-1) - (mean_square - square[position])
        entropy = (surprise - below / temperature).clamp_min_(0.0)
        indices = _settle(position, contested, z, p)
        residual, log_partition = (zc - mu).square().sum(-1), lse - zc.square().sum(-1) / temperature

        ctx.save_for_backward(zc, pc, square, key, bias, temperature, mu, mean_square, spread, *([assignment] if kept else []))
        ctx.rows = rows
        ctx.mark_non_differentiable(indices)
        return mu + centre, spread.clamp_min(0.0), residual, entropy, log_partition, total / max(n, 1), indices

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_centroid: Tensor, g_variance: Tensor, g_residual: Tensor, g_entropy: Tensor, g_partition: Tensor,
                 g_mean: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # fmt: skip
        zc, pc, square, key, bias, temperature, mu, mean_square, spread, *kept = ctx.saved_tensors
        need_z, need_p, need_temperature = ctx.needs_input_grad[:3]
        (n, d), k = zc.shape, pc.shape[0]

        # variance = E||p||^2 - ||mu||^2, residual = ||z - mu||^2, entropy = lse - (2 z.mu - E||p||^2) / T,
        # log_partition = lse - ||z||^2 / T: upstream gradients of mu, E||p||^2 and lse, and what reaches z and T past the softmax.
        g_variance = g_variance * (spread >= 0)
        by_residual, by_entropy, by_partition = 2.0 * g_residual, g_entropy / temperature, g_partition / temperature
        pull = (by_residual + 2.0 * by_entropy)[:, None]
        g_mu = (g_centroid + (by_residual - 2.0 * g_variance)[:, None] * mu).addcmul_(pull, zc, value=-1)
        g_z = ((by_residual - 2.0 * by_partition)[:, None] * zc).addcmul_(pull, mu, value=-1)
        g_lse = g_entropy + g_partition
        upstream = torch.cat([g_mu, (g_variance + by_entropy)[:, None]], 1)
        g_temperature = None
        if need_temperature:
            expected = 2.0 * (zc * mu).sum(-1) - mean_square
            g_temperature = (by_entropy @ expected + by_partition @ zc.square().sum(-1) + (g_z * zc).sum()) / temperature

        # Of ||p||^2 both the values and the logits make use; its row of `g_table` collects both, as the others do for p.
        table = torch.cat([pc, square[:, None]], 1).T
        query = torch.cat([zc * (2.0 / temperature), (-1.0 / temperature).expand(n, 1)], 1)
        g_table = zc.new_zeros(d + 1, k)
        g_total = g_mean / max(n, 1)
        work = zc.new_empty(2 - len(kept), min(ctx.rows, n), k)
        for block in _row_blocks(n, ctx.rows):
            size = block.stop - block.start
            q = kept[0][block] if kept else work[1, :size]
            if not kept:
                torch.softmax(torch.addmm(bias, zc[block], key.T, out=q), -1, out=q)
            # ds = q (dq - sum_k q dq + g_lse). The sum must come from the very products it is subtracted from: the keys multiply what is
            # left of them by 1/T. A column sum is one more value per prototype, whose upstream gradient is the same for every token.
            ds = torch.addmm(g_total, upstream[block], table, out=work[0, :size]).mul_(q)
            ds.addcmul_(q, ds.sum(-1).sub_(g_lse[block])[:, None], value=-1)
            if need_z or need_temperature:
                g_z[block].addmm_(ds, key)
            if need_temperature:
                g_temperature = g_temperature - (ds @ bias).sum() / temperature
            if need_p:
                # Transposed: (c, rows) @ (rows, k) is twice as fast on CPUs as (k, rows) @ (rows, c).
                g_table.addmm_(upstream[block].T, q).addmm_(query[block].T, ds)
        if need_temperature:
            g_temperature = g_temperature - (g_z * zc).sum() / temperature
        g_p = torch.addcmul(g_table[:d].T, pc, g_table[d, :, None], value=2.0) if need_p else None
        return g_z if need_z else None, g_p, g_temperature, None, None


def soft_assign(z: Tensor, p: Tensor, temperature: Tensor | float, block: int | None = None) -> SoftAssignment:
    """The DDCL layer in memory n + k: (n, d), (k, d) -> SoftAssignment, equal to `soft_assign_reference`.

    block: logits held at a time, by default chosen for the device. Everything is computed in float32 (float64 if given float64); ids
    are those of float64 except on exact ties. Raises ValueError for a temperature <= 0.
    """
    check_temperature(temperature)
    dtype = torch.promote_types(z.dtype, torch.float32)
    with torch.autocast(z.device.type, enabled=False):
        z, p = z.to(dtype), p.to(dtype)
        t = torch.as_tensor(temperature, dtype=dtype, device=z.device)
        n, k = z.shape[0], p.shape[0]
        differentiable = torch.is_grad_enabled() and (z.requires_grad or p.requires_grad or t.requires_grad)
        kept = differentiable and block is None and n * k <= KEPT_ELEMENTS
        rows = _rows_per_block(n, k, z.device, block)
        return SoftAssignment(*_SoftAssign.apply(z, p, t, rows, kept))


@torch.no_grad()
def nearest(z: Tensor, p: Tensor, block: int | None = None) -> Tensor:
    """Index of the nearest prototype, argmin_k ||z_n - p_k||^2, in blocks: (n, d), (k, d) -> (n,) int64.

    Equal to float64's choice except on exact ties, whatever offset tokens and prototypes share.
    """
    dtype = torch.promote_types(z.dtype, torch.float32)
    with torch.autocast(z.device.type, enabled=False):
        z, p = z.to(dtype), p.to(dtype)
        n, k = z.shape[0], p.shape[0]
        centre = p.mean(0)
        zc, pc = z - centre, p - centre
        square = pc.square().sum(-1)
        if torch.compiler.is_exporting():  # a graph for any number of tokens has no blocks, and cannot branch on values
            return torch.addmm(-square, zc, 2.0 * pc.T).argmax(-1)
        margin, key = _rounding_margin(zc, square), 2.0 * pc.T
        position = torch.empty(n, dtype=torch.int64, device=z.device)
        contested = torch.empty(n, dtype=torch.bool, device=z.device)
        rows = _rows_per_block(n, k, z.device, block)
        s = z.new_empty(rows, k)
        for part in _row_blocks(n, rows):
            logits = torch.addmm(-square, zc[part], key, out=s[: part.stop - part.start])
            _, position[part], contested[part] = maximum_rows(logits, margin[part])
        return _settle(position, contested, z, p)

"""Soft assignment and nearest-code search without the n x k matrix: blocked, exact gradients for z, p and T.

Expanding d_nk = ||z_n||^2 - 2 z_n.p_k + ||p_k||^2, the term ||z_n||^2 cancels in the softmax, so a DDCL layer is attention with

    logit s_nk = (2 z_n.p_k - ||p_k||^2) / T      q_n = softmax_k(s_nk)      values [p_k, ||p_k||^2]

and mu_n = E_q p, E_q||p||^2 (hence V_n = E_q||p||^2 - ||mu_n||^2) are one weighted sum over the values. The blocked pass below returns,
beside that sum, what a fused attention kernel does not: the log-partition (hence H(q_n)), the mean assignment over tokens, and the
argmax. Where the matrix is small it is kept for the backward pass, else each block of it is computed again there.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vqlab.assignment import SoftAssignment, check_temperature
from vqlab.precision import without_autocast

LN_2 = math.log(2.0)


class BlockSize(NamedTuple):
    """elements: logits of one block.  rows: tokens that a block holds at least, so that each pass over all codes serves many."""

    elements: int
    rows: int


# On CPUs a block of 2^19 logits (2 MiB) stays in the cache; fewer tokens than 64 make the products slow.
CPU_BLOCK = BlockSize(elements=1 << 19, rows=64)
# Elsewhere a block must be large enough to fill the device: 128 MiB.
DEVICE_BLOCK = BlockSize(elements=1 << 25, rows=64)
#: Codes of one tile. Products with so many columns are several times faster on CPUs than those with all codes at once.
TILE = 512
#: Up to so many logits (32 MiB in float32) the assignment is kept for the backward pass instead of being computed twice.
KEPT_ELEMENTS = 1 << 23
#: Logit of the columns that fill the last tile: their share is 0, and no product with it is NaN.
NOWHERE = -1e30


def _rows_per_block(n: int, k: int, device: torch.device, elements: int | None) -> int:
    """Tokens per block; `elements` overrides the device's own choice."""
    size = CPU_BLOCK if device.type == "cpu" else DEVICE_BLOCK
    rows = max(size.rows, size.elements // k) if elements is None else elements // k
    return max(1, min(n, rows))


def _row_blocks(n: int, rows: int) -> list[slice]:
    return [slice(start, min(start + rows, n)) for start in range(0, n, rows)]


class Tiling(NamedTuple):
    """k codes in `tiles` tiles of `columns` codes, the last of them filled up."""

    k: int
    tiles: int
    columns: int

    def split(self, x: Tensor, fill: float = 0.0) -> Tensor:
        """(c, k) -> (tiles, c, columns), contiguous."""
        padding = self.tiles * self.columns - self.k
        x = torch.nn.functional.pad(x, (0, padding), value=fill) if padding else x
        return x.view(x.shape[0], self.tiles, self.columns).transpose(0, 1).contiguous()

    def join(self, x: Tensor) -> Tensor:
        """(tiles, c, columns) -> (c, k)."""
        return x.transpose(0, 1).reshape(x.shape[1], -1)[:, : self.k]

    def block(self, memory: Tensor, rows: int) -> Tensor:
        """Logits (tiles, rows, columns) in the first part of a flat memory."""
        return memory[: self.tiles * rows * self.columns].view(self.tiles, rows, self.columns)


def _tile(k: int) -> Tiling:
    count = -(-k // TILE)
    columns = -(-k // count)
    return Tiling(k, count, -(-columns // 32) * 32 if count > 1 else columns)


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


def _maximum_tiles(s: Tensor, margin: Tensor) -> RowMaximum:
    """Maximum over all codes of logits in tiles: (tiles, n, columns), margin (n,)."""
    if s.shape[0] == 1:
        return maximum_rows(s[0], margin)
    tops = s.amax(-1)
    values, tile = tops.max(0)
    rows = maximum_rows(s[tile, torch.arange(s.shape[1], device=s.device)], margin)
    contested = rows.contested | ((tops >= values - margin).sum(0) > 1)
    return RowMaximum(values, tile * s.shape[2] + rows.position, contested)


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
    """The fields of `SoftAssignment` from z (n, d), p (k, d), T (); `kept`: whether shares are stored for the backward pass.

    Logits are to base 2, since `exp2` is faster than `exp`, and stand in tiles (tiles, rows, columns). Shares are relative to the largest
    one of each token: what they add up to is divided out of the much smaller products.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, p: Tensor, temperature: Tensor, rows: int, kept: bool) -> tuple[Tensor, ...]:
        (n, d), k = z.shape, p.shape[0]
        tiling = _tile(k)
        # With mean(p) subtracted nothing changes in exact arithmetic, and cancellation under a common offset disappears.
        centre = p.mean(0)
        zc, pc = z - centre, p - centre
        square = pc.square().sum(-1)
        margin = _rounding_margin(zc, square) / (temperature * LN_2)
        query, key = _query(zc), _key(pc, square, temperature * LN_2, tiling)
        value = tiling.split(torch.stack([*pc.T, square, torch.ones_like(square)])).transpose(1, 2).contiguous()

        sums, top = z.new_empty(n, d + 2), z.new_empty(n)
        position = torch.empty(n, dtype=torch.int64, device=z.device)
        contested = torch.empty(n, dtype=torch.bool, device=z.device)
        total = z.new_zeros(tiling.tiles, 1, tiling.columns)
        width = tiling.tiles * tiling.columns
        memory = z.new_empty((n if kept else rows) * width)
        for block in _row_blocks(n, rows):
            share = tiling.block(memory[block.start * width :] if kept else memory, block.stop - block.start)
            _logits(query[block], key, out=share)
            top[block], position[block], contested[block] = _maximum_tiles(share, margin[block])
            share.sub_(top[block, None]).exp2_()
            sums[block] = torch.bmm(share, value).sum(0)
            total.baddbmm_(sums[block, -1].reciprocal().expand(tiling.tiles, 1, -1), share)

        mu, mean_square, partition = sums[:, :d] / sums[:, -1:], sums[:, d] / sums[:, -1], sums[:, -1]
        surprise = partition.log()  # of the largest share, which is 1 / partition
        lse = top * LN_2 + surprise
        spread = mean_square - mu.square().sum(-1)
        # H = lse - E[logit], both relative to the nearest prototype's logit: logits are large at a low temperature and would cancel.
        below = 2.0 * (zc * (mu - pc[position])).sum(-1) - (mean_square - square[position])
        entropy = (surprise - below / temperature).clamp_min_(0.0)
        indices = _settle(position, contested, z, p)
        residual, log_partition = (zc - mu).square().sum(-1), lse - zc.square().sum(-1) / temperature

        saved = (zc, pc, square, query, key, temperature, mu, mean_square, spread, partition, top, position, *([memory] if kept else []))
        ctx.save_for_backward(*saved)
        ctx.rows, ctx.tiling = rows, tiling
        ctx.mark_non_differentiable(indices)
        mean_assignment = tiling.join(total)[0] / max(n, 1)
        return mu + centre, spread.clamp_min(0.0), residual, entropy, log_partition, mean_assignment, indices

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_centroid: Tensor, g_variance: Tensor, g_residual: Tensor, g_entropy: Tensor, g_partition: Tensor,
                 g_mean: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # fmt: skip
        zc, pc, square, query, key, temperature, mu, mean_square, spread, partition, top, position, *kept = ctx.saved_tensors
        need_z, need_p, need_temperature = ctx.needs_input_grad[:3]
        (n, d), tiling = zc.shape, ctx.tiling

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

        # ds = q (dq - E_q[dq] + g_lse), with q = share / partition and dq = upstream . [p, ||p||^2] + g_total: a column sum is one more
        # value per prototype, whose upstream gradient is the same for every token. E_q[dq] is known but for E_q[g_total], for which the
        # nearest prototype's stands in; what ds then adds up to beyond g_lse is taken out of the products below. So the sum comes from
        # the very products it is subtracted from: the keys multiply what is left of them by 1/T.
        g_total = g_mean / max(n, 1)
        near = (upstream * torch.cat([mu, mean_square[:, None]], 1)).sum(-1) + g_total[position] - g_lse
        weight = torch.cat([upstream, torch.ones_like(near)[:, None], -near[:, None]], 1) / partition[:, None]
        table = tiling.split(torch.stack([*pc.T, square, g_total, torch.ones_like(square)]))
        # Of ||p||^2 both the values and the logits make use; its row of `g_table` collects both, as the others do for p.
        inner = torch.cat([zc * (2.0 / temperature), (-1.0 / temperature).expand(n, 1)], 1)
        g_table = zc.new_zeros(tiling.tiles, d + 1, tiling.columns)
        points = table[:, : d + 1 if need_temperature else d].transpose(1, 2).contiguous()
        width = tiling.tiles * tiling.columns
        work = zc.new_empty(2 - len(kept), min(ctx.rows, n) * width)
        for block in _row_blocks(n, ctx.rows):
            size = block.stop - block.start
            if kept:
                share = tiling.block(kept[0][block.start * width :], size)
            else:
                share = _logits(query[block], key, out=tiling.block(work[1], size)).sub_(top[block, None]).exp2_()
            ds = _logits(weight[block], table, out=tiling.block(work[0], size)).mul_(share)
            rest = ds.sum((0, 2)) - g_lse[block]
            if need_z or need_temperature:
                pulled = torch.bmm(ds, points).sum(0)
                g_z[block].add_((pulled[:, :d] - rest[:, None] * mu[block]) * (2.0 / temperature))
                if need_temperature:
                    g_temperature = g_temperature + (pulled[:, d] - rest * mean_square[block]).sum() / temperature.square()
            if need_p:
                outer = (upstream[block] - rest[:, None] * inner[block]) / partition[block, None]
                # Transposed: (c, rows) @ (rows, k) is twice as fast on CPUs as (k, rows) @ (rows, c).
                g_table.baddbmm_(outer.T.expand(tiling.tiles, -1, -1), share)
                g_table.baddbmm_(inner[block].T.expand(tiling.tiles, -1, -1), ds)
        if need_temperature:
            g_temperature = g_temperature - (g_z * zc).sum() / temperature
        g_p = None
        if need_p:
            joined = tiling.join(g_table)
            g_p = torch.addcmul(joined[:d].T, pc, joined[d, :, None], value=2.0)
        return g_z if need_z else None, g_p, g_temperature, None, None


def _query(zc: Tensor) -> Tensor:
    """[z, 1]: (n, d) -> (n, d + 1)."""
    return torch.cat([zc, zc.new_ones(zc.shape[0], 1)], 1)


def _key(pc: Tensor, square: Tensor, temperature: Tensor | float, tiling: Tiling) -> Tensor:
    """[2p / T, -||p||^2 / T] in tiles: (k, d), (k,) -> (tiles, d + 1, columns)."""
    key = tiling.split(torch.cat([2.0 * pc.T, -square[None]]) / temperature)
    key[-1, -1, tiling.k - (tiling.tiles - 1) * tiling.columns :] = NOWHERE
    return key


def _logits(query: Tensor, key: Tensor, out: Tensor) -> Tensor:
    """query . key in tiles: (n, c), (tiles, c, columns) -> (tiles, n, columns)."""
    return torch.bmm(query.expand(key.shape[0], -1, -1), key, out=out)


def soft_assign(z: Tensor, p: Tensor, temperature: Tensor | float, block: int | None = None) -> SoftAssignment:
    """The DDCL layer in memory n + k: (n, d), (k, d) -> SoftAssignment, equal to `soft_assign_reference`.

    block: logits held at a time, by default chosen for the device. Everything is computed in float32 (float64 if given float64); ids
    are those of float64 except on exact ties. Raises ValueError for a temperature <= 0.
    """
    check_temperature(temperature)
    dtype = torch.promote_types(z.dtype, torch.float32)
    with without_autocast(z.device):
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
    with without_autocast(z.device):
        z, p = z.to(dtype), p.to(dtype)
        n, k = z.shape[0], p.shape[0]
        centre = p.mean(0)
        zc, pc = z - centre, p - centre
        square = pc.square().sum(-1)
        if torch.compiler.is_exporting():  # a graph for any number of tokens has no blocks, and cannot branch on values
            return torch.addmm(-square, zc, 2.0 * pc.T).argmax(-1)
        tiling = _tile(k)
        margin, query, key = _rounding_margin(zc, square), _query(zc), _key(pc, square, 1.0, tiling)
        position = torch.empty(n, dtype=torch.int64, device=z.device)
        contested = torch.empty(n, dtype=torch.bool, device=z.device)
        rows = _rows_per_block(n, k, z.device, block)
        memory = z.new_empty(rows * tiling.tiles * tiling.columns)
        for part in _row_blocks(n, rows):
            logits = _logits(query[part], key, out=tiling.block(memory, part.stop - part.start))
            _, position[part], contested[part] = _maximum_tiles(logits, margin[part])
        return _settle(position, contested, z, p)

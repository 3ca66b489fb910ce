"""Soft assignment without the n x k matrix: blocked, recomputed in backward, exact gradients for z, p and T.

Expanding d_nk = ||z_n||^2 - 2 z_n.p_k + ||p_k||^2, the term ||z_n||^2 cancels in the softmax, so a DDCL layer is attention with

    query_n = [z_n, 1]      key_k = [2 p_k / T, -||p_k||^2 / T]      value_k = [p_k, ||p_k||^2]

and mu_n, E_q||p||^2 (hence V_n = E_q||p||^2 - ||mu_n||^2) are one weighted sum over the values. The blocked pass below returns,
beside that sum, what a fused attention kernel does not: the log-partition (hence H(q_n)), the mean assignment over tokens, and the
argmax.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vqlab.assignment import SoftAssignment, check_temperature

# A block of this many logits (1 MiB in float32) stays in a core's cache, which makes the element-wise passes several times faster.
BLOCK_ELEMENTS = 1 << 18


class AttentionSums(NamedTuple):
    """Per token: `out` (n, dv) weighted sum of values, `lse` (n,) log-sum-exp of logits, `indices` (n,) argmax, `surprise` (n,) =
    -log q of the argmax, without gradient; `total` (k,) = sum_n q_n."""

    out: Tensor
    lse: Tensor
    indices: Tensor
    total: Tensor
    surprise: Tensor


def _row_blocks(n: int, k: int, elements: int) -> list[slice]:
    rows = max(1, min(n, elements // max(k, 1)))
    return [slice(start, min(start + rows, n)) for start in range(0, n, rows)]


class RowMaximum(NamedTuple):
    """Largest entry of each row `values` (n,), and where it stands first, `position` (n,) int64."""

    values: Tensor
    position: Tensor


def maximum_rows(s: Tensor, group: int = 32) -> RowMaximum:
    """Maximum and first argmax of each row, (n, k): groups first, since `amax` is vectorised on CPUs and `argmax` is not."""
    n, k = s.shape
    if k % group or k <= group:
        return RowMaximum(*s.max(-1))
    groups = s.view(n, k // group, group)
    value, best = groups.amax(-1).max(-1)
    inside = groups[torch.arange(n, device=s.device), best].argmax(-1)
    return RowMaximum(value, best * group + inside)


class _SoftAttention(torch.autograd.Function):
    """softmax(query key^T) value with log-sum-exp, argmax and column sums; recomputes each block of logits in backward."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, block: int) -> tuple[Tensor, ...]:
        n, k = query.shape[0], key.shape[0]
        out = query.new_empty(n, value.shape[1])
        lse = query.new_empty(n)
        indices = torch.empty(n, dtype=torch.int64, device=query.device)
        total = query.new_zeros(k)
        surprise = query.new_empty(n)
        for rows in _row_blocks(n, k, block):
            s = query[rows] @ key.T
            q = torch.softmax(s, -1)
            torch.mm(q, value, out=out[rows])
            top = maximum_rows(s)
            indices[rows] = top.position
            # The largest share is exp(top - lse), so the log-sum-exp needs no pass of its own.
            surprise[rows] = -q.gather(1, top.position[:, None])[:, 0].log()
            lse[rows] = top.values + surprise[rows]
            total.add_(q.sum(0))
        ctx.save_for_backward(query, key, value)
        ctx.block = block
        ctx.mark_non_differentiable(indices, surprise)
        return out, lse, indices, total, surprise

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_out: Tensor, g_lse: Tensor, _: Tensor, g_total: Tensor, __: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value = ctx.saved_tensors
        g_query = torch.empty_like(query)
        # Gradients of key and value are summed transposed: (c, rows) @ (rows, k) is twice as fast on CPUs as (k, rows) @ (rows, c).
        g_key, g_value = (x.new_zeros(x.shape[1], x.shape[0]) for x in (key, value))
        uses_lse = bool(g_lse.any())
        # A column sum is one more value per prototype, whose upstream gradient is 1 for every token.
        values = torch.cat([value, g_total[:, None]], 1)
        g_outs = torch.cat([g_out, g_out.new_ones(g_out.shape[0], 1)], 1)
        for rows in _row_blocks(query.shape[0], key.shape[0], ctx.block):
            q = torch.softmax(query[rows] @ key.T, -1)
            g_value.addmm_(g_out[rows].T, q)
            # ds = q (dq - sum_k q dq) + q g_lse. Both dq must come from one product: the keys multiply what is left of them by 1/T.
            ds = torch.ops.aten._softmax_backward_data(g_outs[rows] @ values.T, q, -1, q.dtype)
            if uses_lse:
                ds.addcmul_(q, g_lse[rows, None])
            torch.mm(ds, key, out=g_query[rows])
            g_key.addmm_(query[rows].T, ds)
        return g_query, g_key.T, g_value.T, None


def soft_attention(query: Tensor, key: Tensor, value: Tensor, block: int = BLOCK_ELEMENTS) -> AttentionSums:
    """softmax(query key^T) value and its by-products, never holding more than a block: (n, c), (k, c), (k, dv) -> AttentionSums."""
    return AttentionSums(*_SoftAttention.apply(query, key, value, block))


def soft_assign(z: Tensor, p: Tensor, temperature: Tensor | float, block: int = BLOCK_ELEMENTS) -> SoftAssignment:
    """The DDCL layer in memory n + k: (n, d), (k, d) -> SoftAssignment, equal to `soft_assign_reference`.

    Everything is computed in float32 (float64 if given float64), with mean(p) subtracted first: nothing changes in exact arithmetic and
    cancellation under a common offset disappears. Raises ValueError for a temperature <= 0.
    """
    check_temperature(temperature)
    dtype = torch.promote_types(z.dtype, torch.float32)
    with torch.autocast(z.device.type, enabled=False):
        z, p = z.to(dtype), p.to(dtype)
        centre = p.detach().mean(0)
        zc, pc = z - centre, p - centre
        square = pc.square().sum(-1, keepdim=True)
        query = torch.cat([zc, torch.ones_like(zc[:, :1])], 1)
        key = torch.cat([2.0 * pc, -square], 1) / temperature
        value = torch.cat([pc, square], 1)
        sums = soft_attention(query, key, value, block)
        mu, mean_square = sums.out[:, :-1], sums.out[:, -1]
        variance = (mean_square - mu.square().sum(-1)).clamp_min(0.0)
        entropy = sums.lse - (2.0 * (zc * mu).sum(-1) - mean_square) / temperature
        # The gradient of lse - E[logit], at a value without cancellation: logits are large at a low temperature, so both terms are
        # taken relative to the nearest prototype's, from which mu differs little.
        best = value.detach()[sums.indices]
        below = (2.0 * (zc * (mu - best[:, :-1])).sum(-1) - (mean_square - best[:, -1])) / temperature
        entropy = entropy + ((sums.surprise - below).clamp_min(0.0) - entropy).detach()
        return SoftAssignment(
            centroid=mu + centre,
            variance=variance,
            residual=(zc - mu).square().sum(-1),
            entropy=entropy,
            log_partition=sums.lse - zc.square().sum(-1) / temperature,
            mean_assignment=sums.total / max(z.shape[0], 1),
            indices=sums.indices,
        )


@torch.no_grad()
def nearest(z: Tensor, p: Tensor, block: int = BLOCK_ELEMENTS) -> Tensor:
    """Index of the nearest prototype, argmin_k ||z_n - p_k||^2, in blocks: (n, d), (k, d) -> (n,) int64."""
    dtype = torch.promote_types(z.dtype, torch.float32)
    with torch.autocast(z.device.type, enabled=False):
        z, p = z.to(dtype), p.to(dtype)
        centre = p.mean(0)
        zc, pc = z - centre, p - centre
        half_square = 0.5 * pc.square().sum(-1)
        indices = torch.empty(z.shape[0], dtype=torch.int64, device=z.device)
        for rows in _row_blocks(z.shape[0], p.shape[0], block):
            indices[rows] = maximum_rows(torch.addmm(half_square, zc[rows], pc.T, beta=-1.0)).position
        return indices

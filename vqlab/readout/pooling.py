"""Other ways from tokens to one vector, for comparison: (b, n, dim), mask (b, n) bool -> (b, out_dim).

All of them ignore padding. Those with a bank of learned vectors (slots, latents, centres) show it as `bank`, (K, dim).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from vqlab.readout.packing import packing_of


class Pool(nn.Module):
    """Base: `out_dim` is the width of the result, `bank` the learned vectors that compete for tokens, where there are any."""

    def __init__(self, dim: int, out_dim: int) -> None:
        super().__init__()
        self.dim, self.out_dim = dim, out_dim

    @property
    def bank(self) -> Tensor | None:
        return None

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """(b, n, dim), mask (b, n) with 1 or True at real tokens -> (b, out_dim)."""
        return self.pool(tokens, packing_of(tokens, mask).mask)

    def pool(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """As `forward`, with a mask that is there and bool."""
        raise NotImplementedError


class ClsPool(Pool):
    """The first real token, [CLS] in BERT-type encoders."""

    def __init__(self, dim: int, codebook_size: int = 1) -> None:
        super().__init__(dim, dim)

    def pool(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return tokens[torch.arange(len(tokens), device=tokens.device), mask.int().argmax(1)]


class MeanPool(Pool):
    """Mean of the real tokens."""

    def __init__(self, dim: int, codebook_size: int = 1) -> None:
        super().__init__(dim, dim)

    def pool(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return tokens.masked_fill(~mask[..., None], 0.0).sum(1) / mask.sum(1, keepdim=True)


class MaxPool(Pool):
    """Largest value of each channel over the real tokens."""

    def __init__(self, dim: int, codebook_size: int = 1) -> None:
        super().__init__(dim, dim)

    def pool(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return tokens.masked_fill(~mask[..., None], float("-inf")).amax(1)


class PerceiverPool(Pool):
    """K learned latents that attend to the tokens, one layer of cross-attention, then their mean.

    Source: Jaegle et al., "Perceiver" (arXiv:2103.03206). The attention is `torch.nn.MultiheadAttention`.
    """

    def __init__(self, dim: int, codebook_size: int = 16, heads: int = 4) -> None:
        super().__init__(dim, dim)
        self.latents = nn.Parameter(0.02 * torch.randn(codebook_size, dim))
        self.norm = nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)

    @property
    def bank(self) -> Tensor:
        return self.latents

    def slots(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """What each latent has read: (b, K, dim)."""
        x = self.norm(tokens.masked_fill(~mask[..., None], 0.0))
        query = self.latents.expand(len(tokens), -1, -1)
        read, _ = self.attention(query, x, x, key_padding_mask=~mask, need_weights=False)
        return query + read

    def pool(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.slots(tokens, mask).mean(1)


class AttentionPool(PerceiverPool):
    """One learned query that attends to the tokens: attention pooling, the Perceiver with a single latent."""

    def __init__(self, dim: int, codebook_size: int = 1, heads: int = 4) -> None:
        super().__init__(dim, 1, heads)


class SlotAttentionPool(Pool):
    """K slots that compete for tokens over a few rounds, then their mean.

    Source: Locatello et al., "Object-Centric Learning with Slot Attention" (arXiv:2006.15055), algorithm 1, with learned initial slots
    in place of one shared Gaussian, so that there is a bank to look at. Packages that offer it take no padding mask.
    """

    def __init__(self, dim: int, codebook_size: int = 16, rounds: int = 3) -> None:
        super().__init__(dim, dim)
        self.rounds = rounds
        self.initial = nn.Parameter(torch.randn(codebook_size, dim) * dim**-0.5)
        self.norm_tokens, self.norm_slots, self.norm_mlp = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.to_query, self.to_key, self.to_value = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.update = nn.GRUCell(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))

    @property
    def bank(self) -> Tensor:
        return self.initial

    def slots(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """The slots after the last round: (b, K, dim)."""
        b, k = len(tokens), len(self.initial)
        x = self.norm_tokens(tokens.masked_fill(~mask[..., None], 0.0))
        key, value = self.to_key(x), self.to_value(x)
        slots = self.initial.expand(b, -1, -1)
        for _ in range(self.rounds):
            logits = self.to_query(self.norm_slots(slots)) @ key.transpose(1, 2) * self.dim**-0.5
            share = (logits.softmax(1) + 1e-8) * mask[:, None]  # slots compete for each real token
            read = share / share.sum(-1, keepdim=True) @ value
            slots = self.update(read.flatten(0, 1), slots.flatten(0, 1)).view(b, k, self.dim)
            slots = slots + self.mlp(self.norm_mlp(slots))
        return slots

    def pool(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.slots(tokens, mask).mean(1)


class NetVLADPool(Pool):
    """Residuals to K centres, weighted by a learned soft assignment, normalised and laid side by side: out_dim = K dim.

    Source: Arandjelovic et al., "NetVLAD" (arXiv:1511.07247), equations 3 and 4.
    """

    def __init__(self, dim: int, codebook_size: int = 8) -> None:
        super().__init__(dim, codebook_size * dim)
        self.centres = nn.Parameter(torch.randn(codebook_size, dim) * dim**-0.5)
        self.assign = nn.Linear(dim, codebook_size)

    @property
    def bank(self) -> Tensor:
        return self.centres

    def slots(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """The normalised residual of every centre: (b, K, dim)."""
        x = nn.functional.normalize(tokens.masked_fill(~mask[..., None], 0.0), dim=-1)
        q = self.assign(x).softmax(-1) * mask[..., None]
        residual = q.transpose(1, 2) @ x - q.sum(1)[..., None] * self.centres
        return nn.functional.normalize(residual, dim=-1)

    def pool(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return nn.functional.normalize(self.slots(tokens, mask).flatten(1), dim=-1)


POOLINGS: Mapping[str, Callable[..., Pool]] = {
    "cls": ClsPool,
    "mean": MeanPool,
    "max": MaxPool,
    "attention": AttentionPool,
    "slot": SlotAttentionPool,
    "perceiver": PerceiverPool,
    "netvlad": NetVLADPool,
}

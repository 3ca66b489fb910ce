"""A stack of codebooks on maps or sequences: the quantizer that tokenizers use, with one level or many.

    residual   z --> [level 1] --c1--> (z - c1) --> [level 2] --c2--> ...      quantized = c1 + c2 + ... + the last q
    cascade    z --> [level 1] --q1-----------> [level 2] --q2--> ...          quantized = the last q

q is what a level hands on (a soft centroid or a code), c the code of its id. In a residual stack every level quantizes what the *codes* of
the levels before it left, since those are all that a decoder will have: only the last level is soft. In a cascade level l+1 quantizes the
(soft) centroids of level l with fewer codes, as in the hierarchical compression of DDCL-Attention (arXiv:2604.03850); its ids follow a hard
chain of their own. The identity L_q = L_OLS + V and the condition T < T_c hold, and are reported, at each level separately.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from vqlab.precision import without_autocast
from vqlab.quantizers.base import Codebook, LevelOutput, QuantizerOutput, check_tokens
from vqlab.quantizers.latents import LatentSpace

STACKS = ("residual", "cascade")


class Quantizer(nn.Module):
    """Levels of codebooks on feature maps (b, dim, h, w) or sequences (b, n, dim); the number of axes tells which, never the sizes.

    dim: channels of the input.  levels: codebooks that share one dimension (`codebook_dim`).  topology: "residual" or "cascade".
    normalize: fix the scale of the latents (`LatentNorm`).  Raises ValueError for contradictory levels or inputs of another layout.
    """

    def __init__(self, dim: int, levels: Sequence[Codebook], *, topology: str = "residual", normalize: bool = True) -> None:
        super().__init__()
        if topology not in STACKS:
            raise ValueError(f"topology must be one of {', '.join(STACKS)}, got {topology!r}")
        if not levels:
            raise ValueError("a quantizer needs at least one level")
        dims = {level.dim for level in levels}
        if len(dims) > 1:
            raise ValueError(f"all levels of a stack share one codebook_dim, got {sorted(dims)}")
        sizes = [level.codebook_size for level in levels]
        if topology == "cascade" and any(b > a for a, b in pairwise(sizes)):
            raise ValueError(f"a cascade compresses: codebook sizes must not grow from level to level, got {sizes}")
        self.dim, self.topology, self.normalize = dim, topology, normalize
        self.codebook_dim = dims.pop()
        self.space = LatentSpace(dim, self.codebook_dim, normalize)
        self.levels = nn.ModuleList(levels)

    # -- figures of the stack ---------------------------------------------------------------------------------------------------

    @property
    def codebooks(self) -> list[Codebook]:
        return [level for level in self.levels if isinstance(level, Codebook)]

    @property
    def num_levels(self) -> int:
        return len(self.levels)

    @property
    def codebook_sizes(self) -> list[int]:
        return [level.codebook_size for level in self.codebooks]

    @property
    def bits_per_token(self) -> float:
        """log2 of the codes that a decoder needs: the sum over levels of a residual stack, the last level of a cascade."""
        sizes = self.codebook_sizes if self.topology == "residual" else self.codebook_sizes[-1:]
        return sum(math.log2(size) for size in sizes)

    def tokens_per_level(self, grid: Sequence[int]) -> list[int]:
        """Ids of each level that a decoder needs for a grid (h, w) or a sequence (n,): of a cascade, the last level's alone."""
        tokens = math.prod(grid)
        return [0 if self.topology == "cascade" and level + 1 < self.num_levels else tokens for level in range(self.num_levels)]

    def cell_ids(self, indices: Tensor) -> list[Tensor]:
        """The ids of each level, each token once: (b, h, w, levels) or (b, n, levels) -> one (b, ...) for each level that is given."""
        return list(indices.unbind(-1))

    @property
    def is_soft(self) -> bool:
        """Whether training decodes soft mixtures that differ from what ids decode to."""
        return any(level.is_soft for level in self.codebooks)

    # -- the three operations ---------------------------------------------------------------------------------------------------

    def forward(self, x: Tensor) -> QuantizerOutput:
        """Quantize with gradients: (b, dim, h, w) or (b, n, dim) -> QuantizerOutput, in float32 also under autocast."""
        with without_autocast(x.device):
            z = self._enter(x)
            # base: the codes of the levels so far.  rest: what they left of z.
            outputs, base, rest, prefixes = [], torch.zeros_like(z), z, []
            straight_through = False
            for level in self.codebooks:
                # After a hard level the sum passes the decoder's gradient on whole; a soft level's would come on top of it.
                out: LevelOutput = level(rest.detach() if straight_through and level.is_soft and self.topology == "residual" else rest)
                outputs.append(out)
                if self.topology == "cascade":
                    total = rest = out.quantized
                elif level.is_soft:
                    # The choice of the code is constant, the code is not: no straight-through, yet prototypes learn from what comes after.
                    code = nn.functional.embedding(out.indices, level.codes)
                    total, base, rest = base + out.quantized, base + code, rest - code
                else:
                    # The first hard level's own estimator passes the decoder's gradient on whole, once; after soft levels it goes straight
                    # through their sum. The code itself is a constant, so that later commitments reach the encoder.
                    if straight_through:
                        total = base + out.quantized.detach()
                    else:
                        total = out.quantized if len(outputs) == 1 else z + (base + out.quantized - z).detach()
                    straight_through, base = True, total
                    rest = rest - nn.functional.embedding(out.indices, level.codes).detach()
                prefixes.append(total)
            if self.topology == "residual" or self.num_levels == 1:
                indices = torch.stack([out.indices for out in outputs], -1)
            else:
                indices = self._hard_chain(z.detach(), self.num_levels, outputs[0].indices)
            maps = [self._leave(prefix, x) for prefix in prefixes]
            return QuantizerOutput(
                quantized=maps[-1],
                indices=self._as_grid(indices, x),
                loss=torch.stack([out.loss for out in outputs]).sum(),
                parts=tuple(out.parts for out in outputs),
                mean_assignment=tuple(out.mean_assignment for out in outputs),
                prefixes=tuple(maps),
            )

    @torch.no_grad()
    def encode(self, x: Tensor, levels: int | None = None) -> Tensor:
        """Ids only, no soft results: (b, dim, h, w) -> (b, h, w, levels), (b, n, dim) -> (b, n, levels), int64.

        Raises ValueError unless 1 <= levels <= num_levels.
        """
        levels = self._check_levels(levels)
        with without_autocast(x.device):
            return self._as_grid(self._hard_chain(self._enter(x, update=False), levels), x)

    def decode_indices(self, indices: Tensor) -> Tensor:
        """Ids of the first 1 .. num_levels levels to vectors: (b, h, w, levels) -> (b, dim, h, w), (b, n, levels) -> (b, n, dim).

        Raises ValueError for an id outside 0..codebook_size-1 or a wrong number of levels.
        """
        if indices.dim() not in (3, 4):
            raise ValueError(f"indices must be (b, h, w, levels) or (b, n, levels), got shape {tuple(indices.shape)}")
        levels = self._check_levels(indices.shape[-1])
        with without_autocast(indices.device):
            codes = [level.lookup(indices[..., i]) for i, level in enumerate(self.codebooks[:levels])]
            out = self.space.leave(codes[-1] if self.topology == "cascade" else torch.stack(codes).sum(0))
        return out.movedim(-1, 1) if indices.dim() == 4 else out

    # -- training ---------------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def calibrate(self, x: Tensor) -> None:
        """Take the statistics of features (b, dim, h, w) or (b, n, dim) as the running ones of the latents, changing nothing else.

        While the encoder learns fast its running statistics lag behind; before an evaluation this brings them up to date.
        Source: Wu and Johnson, "Rethinking 'Batch' in BatchNorm" (arXiv:2105.07576), section 3 (precise statistics).
        """
        with without_autocast(x.device):
            self.space.calibrate(self._tokens(x))

    def after_step(self) -> None:
        """Call once after every optimizer step: temperatures cool, moving averages move, dead codes revive."""
        for level in self.codebooks:
            level.after_step()

    def prepare(self, total_steps: int) -> None:
        """Tell the schedules how many optimizer steps the training will take."""
        for level in self.codebooks:
            level.prepare(total_steps)

    def freeze(self, frozen: bool = True) -> None:
        """Keep all codebooks as they are; the encoder still gets its gradients."""
        for level in self.codebooks:
            level.freeze(frozen)

    def codebook_parameters(self) -> list[nn.Parameter]:
        return [p for level in self.codebooks for p in level.codebook_parameters()]

    def settings(self) -> dict[str, Any]:
        """What `build_quantizer` needs to make this stack again: plain JSON types."""
        levels = [{"kind": level.kind, "codebook_size": level.codebook_size, **level.settings()} for level in self.codebooks]
        return {"topology": self.topology, "normalize": self.normalize, "codebook_dim": self.codebook_dim, "levels": levels}

    # -- inside -----------------------------------------------------------------------------------------------------------------

    def _check_levels(self, levels: int | None) -> int:
        if levels is None:
            return self.num_levels
        if not 1 <= levels <= self.num_levels:
            raise ValueError(f"levels must lie in 1..{self.num_levels}, got {levels}")
        return levels

    def _tokens(self, x: Tensor) -> Tensor:
        """Maps (b, dim, h, w) or sequences (b, n, dim) to tokens (b h w, dim) float32."""
        if x.dim() not in (3, 4):
            raise ValueError(f"expected a map (b, {self.dim}, h, w) or a sequence (b, n, {self.dim}), got shape {tuple(x.shape)}")
        channels = x.shape[1] if x.dim() == 4 else x.shape[2]
        if channels != self.dim:
            raise ValueError(f"expected {self.dim} channels on axis {1 if x.dim() == 4 else 2}, got shape {tuple(x.shape)}")
        return (x.movedim(1, -1) if x.dim() == 4 else x).reshape(-1, self.dim).float()

    def _enter(self, x: Tensor, update: bool = True) -> Tensor:
        tokens = self._tokens(x)
        if self.training and update:
            check_tokens("input of the quantizer", tokens.detach())
        if self.training and not update:
            # Asking for ids must not move running statistics, also in the midst of training.
            self.space.eval()
            try:
                return self.space.enter(tokens)
            finally:
                self.space.train()
        return self.space.enter(tokens)

    def _leave(self, tokens: Tensor, x: Tensor) -> Tensor:
        out = self.space.leave(tokens)
        if x.dim() == 3:
            return out.view(x.shape[0], x.shape[1], self.dim)
        return out.view(x.shape[0], *x.shape[2:], self.dim).movedim(-1, 1)  # channels_last, no copy

    def _as_grid(self, indices: Tensor, x: Tensor) -> Tensor:
        grid = x.shape[2:] if x.dim() == 4 else x.shape[1:2]
        return indices.view(x.shape[0], *grid, indices.shape[-1])

    @torch.no_grad()
    def _hard_chain(self, z: Tensor, levels: int, first: Tensor | None = None) -> Tensor:
        """Ids of the hard chain: (n, codebook_dim) -> (n, levels); `first` are level 1's ids when known already."""
        ids, rest = [], z
        for i, level in enumerate(self.codebooks[:levels]):
            ids.append(first if first is not None and i == 0 else level.encode(rest))
            code = nn.functional.embedding(ids[-1], level.codes)
            rest = rest - code if self.topology == "residual" else code
        return torch.stack(ids, -1)

"""What every quantizer is: tokens in, codes out, one named result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vqlab.distributed import any_rank
from vqlab.indices import check_indices


@dataclass(frozen=True)
class LevelOutput:
    """One level of a quantizer.

    quantized: what this level hands on, tokens (n, d).  indices: nearest codes (n,) int64.
    parts: named scalar figures of this level (detached).  mean_assignment: mean_n q_n (k,), only where the level has one.
    """

    quantized: Tensor
    indices: Tensor
    loss: Tensor
    parts: dict[str, Tensor]
    mean_assignment: Tensor | None = None


@dataclass(frozen=True)
class QuantizerOutput:
    """What every quantizer returns.

    quantized: same shape as the input.  indices: (b, h, w, levels) for maps, (b, n, levels) for sequences, int64; in
    `eval()` equal to `encode`'s, while training by the batch's own normalisation where `encode` takes the running one.
    loss: scalar to add to the task's loss.  parts: one dict of named scalars per level.
    mean_assignment: mean_n q_n (k,) per level, None where a level has none.
    prefixes: the quantized map decoded from the first 1, 2, ... levels.
    """

    quantized: Tensor
    indices: Tensor
    loss: Tensor
    parts: tuple[dict[str, Tensor], ...] = ()
    mean_assignment: tuple[Tensor | None, ...] = ()
    prefixes: tuple[Tensor, ...] = field(default=(), repr=False)


class NonFiniteError(FloatingPointError):
    """NaN or inf where finite numbers are needed; raised before any state has changed."""


def check_tokens(name: str, tokens: Tensor) -> None:
    """Refuse tokens (n, dim) to train on: NonFiniteError, naming the tensor, for NaN or inf, ValueError for no tokens at all.

    All ranks raise together, whichever of them has the tokens: one that goes on would wait for the others for ever.
    """
    # The extremes are NaN where any value is; they take one pass where `isfinite(tokens).all()` takes several.
    empty = tokens.numel() == 0
    bad = not empty and not bool(torch.isfinite(torch.stack(torch.aminmax(tokens))).all())
    any_empty, any_bad = any_rank(empty, bad, device=tokens.device)
    if any_empty:
        raise ValueError("a training batch needs at least one token" + ("" if empty else ": another process has none"))
    if any_bad:
        where = f"in a tensor of shape {tuple(tokens.shape)}" if bad else "on another process"
        raise NonFiniteError(f"{name}: NaN or inf {where}; the codebook is unchanged. Check the input images and the learning rate")


class Codebook(nn.Module):
    """Base of one level: quantizes tokens (n, dim) with `codebook_size` codes of the same dimension.

    Subclasses implement `forward` (training and soft results), `encode` (ids only) and `codes` (the table that ids decode to).
    Training calls `after_step()` once after every optimizer step: temperatures, moving averages and revival advance there, so that hard
    codebooks move under gradient accumulation as on one batch of the micro-batches' sum, and `eval()` never changes state. What is a
    statistic of a batch (normalisation, running covariance, the push toward equal use) sees each micro-batch by itself.
    """

    kind: str = ""
    #: True if `forward` returns a soft mixture that differs from the code its index decodes to.
    is_soft: bool = False
    #: False if a second level of the same codes would find nothing to quantize.
    stackable: bool = True
    #: Names of the scalars in `LevelOutput.parts`.
    part_names: tuple[str, ...] = ()

    def __init__(self, dim: int, codebook_size: int) -> None:
        super().__init__()
        if dim < 1:
            raise ValueError(f"dim must be at least 1, got {dim}")
        if codebook_size < 1:
            raise ValueError(f"codebook_size must be at least 1, got {codebook_size}")
        self.dim = dim
        self.codebook_size = codebook_size
        self.frozen = False

    @classmethod
    def default_dim(cls, codebook_size: int) -> int:
        """The dimension to give codes where none is asked for. Raises ValueError for a size that the kind cannot have."""
        return 16

    @property
    def codes(self) -> Tensor:
        """The table that ids decode to: (codebook_size, dim) float32."""
        raise NotImplementedError

    def encode(self, z: Tensor) -> Tensor:
        """Ids of the nearest codes: (n, dim) -> (n,) int64."""
        raise NotImplementedError

    def lookup(self, indices: Tensor) -> Tensor:
        """Codes of ids: (...,) -> (..., dim). Raises ValueError for an id outside 0..codebook_size-1."""
        check_indices(indices, self.codebook_size)
        return nn.functional.embedding(indices.long(), self.codes)

    def diagnostics(self, thorough: bool = False) -> dict[str, Tensor]:
        """Named scalars that are too costly for every step; thorough: at the end of an epoch, where more time may be spent on them."""
        return {}

    def after_step(self) -> None:
        """Advance whatever moves once per optimizer step."""

    def prepare(self, total_steps: int) -> None:
        """Tell schedules how many optimizer steps the training will take."""

    def freeze(self, frozen: bool = True) -> None:
        """Keep the codebook as it is (or let it go on); the encoder still gets its gradients. Part of the state dict."""
        self.frozen = frozen

    def get_extra_state(self) -> Tensor:
        """What is neither parameter nor buffer: whether the codebook is frozen. (Kept as a bool, which a compiled graph may branch on.)"""
        return torch.tensor(self.frozen)

    def set_extra_state(self, state: Tensor) -> None:
        self.freeze(bool(state))

    def codebook_parameters(self) -> list[nn.Parameter]:
        """Parameters that belong to the codebook: own learning rate, no weight decay."""
        return []

    def settings(self) -> dict[str, Any]:
        """Keyword arguments that rebuild this level (plain JSON types)."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"dim={self.dim}, codebook_size={self.codebook_size}"

"""What every quantizer is: tokens in, codes out, one named result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class LevelOutput:
    """One level of a quantizer.

    quantized: what this level hands on, tokens (n, d).  indices: nearest codes (n,) int64.
    parts: named scalar figures of this level (detached).  mean_assignment: mean_n q_n (k,), only for soft quantizers.
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
    mean_assignment: mean_n q_n (k,) per level, None for hard levels.  prefixes: the quantized map decoded from the first 1, 2, ... levels.
    """

    quantized: Tensor
    indices: Tensor
    loss: Tensor
    parts: tuple[dict[str, Tensor], ...] = ()
    mean_assignment: tuple[Tensor | None, ...] = ()
    prefixes: tuple[Tensor, ...] = field(default=(), repr=False)


class NonFiniteError(FloatingPointError):
    """NaN or inf where finite numbers are needed; raised before any state has changed."""


def check_finite(name: str, x: Tensor) -> None:
    """Raise NonFiniteError naming the tensor if it holds NaN or inf."""
    # The extremes are NaN where any value is; they take one pass where `isfinite(x).all()` takes several.
    if x.numel() and not bool(torch.isfinite(torch.stack(torch.aminmax(x))).all()):
        raise NonFiniteError(
            f"{name}: NaN or inf in a tensor of shape {tuple(x.shape)}; the codebook is unchanged. "
            "Check the input images and the learning rate"
        )


def check_indices(indices: Tensor, codebook_size: int) -> None:
    """Raise ValueError unless all indices are integers in 0..codebook_size-1 (never a wrap-around)."""
    if indices.is_floating_point() or indices.is_complex() or indices.dtype == torch.bool:
        raise ValueError(f"indices must be integers, got {indices.dtype}")
    if torch.compiler.is_exporting():
        return  # a graph cannot branch on values
    if indices.numel() and (int(indices.min()) < 0 or int(indices.max()) >= codebook_size):
        raise ValueError(f"indices must lie in 0..{codebook_size - 1}, got {int(indices.min())}..{int(indices.max())}")


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
        """Keep the codebook as it is (or let it go on); the encoder still gets its gradients."""
        raise NotImplementedError

    def codebook_parameters(self) -> list[nn.Parameter]:
        """Parameters that belong to the codebook: own learning rate, no weight decay."""
        return []

    def settings(self) -> dict[str, Any]:
        """Keyword arguments that rebuild this level (plain JSON types)."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"dim={self.dim}, codebook_size={self.codebook_size}"

"""What the training of a prior is told."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from vqlab.errors import VqlabError


@dataclass(frozen=True)
class PriorConfig:
    """A prior and its training.

    width, layers, heads: of the transformer.  conditional: whether it is told the class of the image.  steps: optimizer steps, the budget
    by which priors are compared.  batch_size: images per step.  lr: largest learning rate, after `warmup_steps` of linear growth; a cosine
    brings it down.  weight_decay: of matrices.  save_every: steps between checkpoints.  precision: auto, bf16 or float32.
    VqlabError for a value out of range.
    """

    width: int = 128
    layers: int = 4
    heads: int = 4
    conditional: bool = True
    steps: int = 2000
    batch_size: int = 64
    lr: float = 2e-3
    warmup_steps: int = 100
    weight_decay: float = 0.05
    seed: int = 0
    save_every: int = 200
    log_every: int = 20
    precision: str = "auto"
    data: str = "cifar10"

    def __post_init__(self) -> None:
        for name in ("width", "layers", "heads", "steps", "batch_size", "save_every", "log_every"):
            value = getattr(self, name)
            if value < 1:
                raise VqlabError(f"{name} must be at least 1, got {value}")
        if self.width % self.heads:
            raise VqlabError(f"width must be a multiple of heads, got {self.width} and {self.heads}")
        if not 0 < self.lr < math.inf:
            raise VqlabError(f"lr must be positive and finite, got {self.lr}")
        if not 0 <= self.weight_decay < math.inf or self.warmup_steps < 0 or self.seed < 0:
            raise VqlabError("weight_decay, warmup_steps and seed must not be negative")

    def to_dict(self) -> dict[str, Any]:
        """Plain types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> PriorConfig:
        """The inverse of `to_dict`; VqlabError for an unknown key."""
        try:
            return cls(**content)
        except TypeError as error:
            raise VqlabError(f"configuration of the prior: {error}") from error

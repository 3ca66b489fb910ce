"""Means of several named scalars at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric


class WeightedMeans(Metric):
    """Weighted means of named scalars, summed over ranks in float64; one state for all names keeps updates cheap."""

    full_state_update = False
    higher_is_better = None
    sums: Tensor
    weight: Tensor

    def __init__(self, names: Sequence[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.names = tuple(names)
        self.add_state("sums", torch.zeros(len(self.names), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("weight", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, values: Mapping[str, Tensor], weight: float) -> None:
        """Add one set of scalars that count `weight` times; KeyError if a name is missing."""
        if weight > 0 and self.names:
            self.sums += torch.stack([values[name].detach() for name in self.names]).double() * weight
            self.weight += weight

    def compute(self) -> dict[str, Tensor]:
        """The mean of each name, 0-dim float64; NaN before the first update."""
        return dict(zip(self.names, self.sums / self.weight, strict=True))

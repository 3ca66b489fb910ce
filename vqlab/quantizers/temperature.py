"""How the relative temperature tau cools while training; all of it lives in the state dict."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SHAPES = ("geometric", "linear", "cosine", "constant")


class TemperatureSchedule(nn.Module):
    """tau from `start` to `end` over the first `fraction` of the training, constant after that.

    geometric: tau = start (end/start)^x;  linear and cosine: the usual interpolations;  constant: start.
    `prepare(total_steps)` sets the length once, `advance()` moves by one optimizer step.
    """

    step: Tensor
    total: Tensor

    def __init__(self, start: float, end: float, shape: str = "geometric", fraction: float = 1.0) -> None:
        super().__init__()
        if not (0 < start < float("inf") and 0 < end < float("inf")):
            raise ValueError(f"tau_start and tau_end must be positive, got {start} and {end}")
        if shape not in SHAPES:
            raise ValueError(f"tau_shape must be one of {', '.join(SHAPES)}, got {shape!r}")
        if not 0 < fraction <= 1:
            raise ValueError(f"tau_fraction must lie in (0, 1], got {fraction}")
        self.start, self.end, self.shape, self.fraction = start, end, shape, fraction
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.register_buffer("total", torch.zeros((), dtype=torch.int64))

    def prepare(self, total_steps: int) -> None:
        """Set the number of optimizer steps of the training, counted from step 0."""
        self.total.fill_(total_steps)

    def advance(self) -> None:
        """One optimizer step has been taken."""
        self.step.add_(1)

    @property
    def progress(self) -> Tensor:
        """How far the cooling is, 0 to 1, 0-dim float32; 0 until `prepare` has been called."""
        length = (self.total.float() * self.fraction).clamp_min(1.0)
        return torch.where(self.total > 0, (self.step.float() / length).clamp(0.0, 1.0), 0.0)

    @property
    def tau(self) -> Tensor:
        """The current relative temperature, 0-dim float32; `start` until `prepare` has been called."""
        x = self.progress
        if self.shape == "constant":
            return torch.full_like(x, self.start)
        if self.shape == "geometric":
            return self.start * (self.end / self.start) ** x
        if self.shape == "cosine":
            x = 0.5 - 0.5 * torch.cos(torch.pi * x)
        return self.start + (self.end - self.start) * x

"""A moving average of all weights and buffers, which is what is evaluated and saved.

    average <- d average + (1 - d) current,   d = min(decay, (1 + n) / (10 + n)) after n steps

Codebooks that move by buffers (moving averages, normalisation statistics) are averaged with the weights that they belong to. Source:
Tarvainen and Valpola (arXiv:1703.01780); the start of d as in TensorFlow's ExponentialMovingAverage.
"""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor

from vqlab.training.module import TokenizerModule


class WeightAverage(L.Callback):
    """Averages the tokenizer's state after every optimizer step and puts the average in place from evaluation to the end of the epoch.

    Place it after the callback that saves the tokenizer and before the one that writes checkpoints, which hold both states. Integers and
    flags are those of the latest step.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.steps = 0
        self._average: dict[str, Tensor] = {}
        self._current: dict[str, Tensor] = {}

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        assert isinstance(module, TokenizerModule)
        if not self._average:
            self._average = _copy(module.tokenizer.state_dict())

    @torch.no_grad()
    def on_train_batch_end(self, trainer: L.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self.steps:
            return  # a micro-batch without a step of the optimizer
        self.steps = trainer.global_step
        share = 1 - min(self.decay, (1 + self.steps) / (10 + self.steps))
        for name, value in module.tokenizer.state_dict().items():
            average = self._average[name] = self._average[name].to(value.device)
            if value.is_floating_point():
                average.lerp_(value, share)
            else:
                average.copy_(value)

    def on_validation_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        assert isinstance(module, TokenizerModule)
        self._current = _copy(module.tokenizer.state_dict())
        module.tokenizer.load_state_dict(self._average)

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        assert isinstance(module, TokenizerModule)
        if self._current:
            module.tokenizer.load_state_dict(self._current)
            self._current = {}

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "average": {name: value.cpu() for name, value in self._average.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self._average = int(state["steps"]), _copy(state["average"])


def _copy(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in state.items()}

"""What happens at steps and epochs: the rows of the tables, the run folder, the progress bar."""

from __future__ import annotations

import time
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import TQDMProgressBar
from safetensors import SafetensorError
from torch import Tensor

from vqlab.errors import VqlabError
from vqlab.training.checkpoint import ends_step
from vqlab.training.module import TokenizerModule
from vqlab.training.records import RunFolder


class EpochRecorder(L.Callback):
    """Collects one row per epoch and one per `log_every` steps, and writes the run folder after each epoch.

    Its state is part of the checkpoint, so the tables of a resumed run have neither gaps nor repeated rows.
    """

    def __init__(self, folder: RunFolder, log_every: int, usage_warning: float, preview: Tensor) -> None:
        self.folder, self.log_every, self.usage_warning, self.preview = folder, log_every, usage_warning, preview
        self.epochs: list[dict[str, float]] = []
        self.steps: list[dict[str, float]] = []
        self.seconds = 0.0
        self.took_a_step = False
        self._since = self._epoch_started = self._trained = time.perf_counter()
        self._images = 0
        self._warned: set[int] = set()  # levels whose margin has been warned of in this epoch

    # -- steps ------------------------------------------------------------------------------------------------------------------

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        # An epoch that is resumed in its middle has no start of its own.
        self._since = self._epoch_started = time.perf_counter()
        self._images = 0

    def on_train_epoch_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._epoch_started, self._images = time.perf_counter(), 0
        self._warned.clear()

    def on_train_batch_end(self, trainer: L.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.took_a_step = True
        self._images += len(batch.images) * trainer.world_size
        if not ends_step(trainer, batch_idx) or (trainer.global_step - 1) % self.log_every:
            return
        row = {"epoch": trainer.current_epoch + 1, "step": trainer.global_step, "lr": _lr(trainer)}
        row |= {name: float(value) for name, value in module.latest.items()}
        for i, (parts, book) in enumerate(zip(module.latest_parts, module.tokenizer.quantizer.codebooks, strict=True), 1):
            row |= {f"level{i}/{name}": float(value) for name, value in (parts | book.diagnostics()).items()}
        self.steps.append(row)
        if trainer.is_global_zero:
            self._watch_margins(
                {i: row.get(f"level{i}/margin") for i in range(1, len(module.latest_parts) + 1)}, module, trainer.global_step
            )

    def _watch_margins(self, margins: dict[int, float | None], module: TokenizerModule, step: int) -> None:
        """Warn, once per level and epoch, where the collapse of all prototypes attracts."""
        for i, book in enumerate(module.tokenizer.quantizer.codebooks, 1):
            margin = margins.get(i)
            if margin is None or margin >= 1 or i in self._warned:
                continue
            self._warned.add(i)
            tau = float(module.latest_parts[i - 1]["tau"])
            print(
                f"warning: step {step}: collapse margin T_c/T of level {i} is {margin:.2f} < 1, its prototypes may merge: "
                f"tau is {tau:.3g} and ought to stay below {tau * margin:.3g}; "
                f"lower {book.kind}.tau_start or {book.kind}.tau_end, or set {book.kind}.keep_margin",
                flush=True,
            )

    # -- epochs -----------------------------------------------------------------------------------------------------------------

    def on_validation_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._trained = time.perf_counter()

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        assert isinstance(module, TokenizerModule)
        row: dict[str, float] = {"epoch": trainer.current_epoch + 1, "step": trainer.global_step, "lr": _lr(trainer)}
        row |= {f"train/{name}": value for name, value in module.train_figures().items()}
        row["train/images_per_second"] = self._images / max(self._trained - self._epoch_started, 1e-9)
        row |= {f"test/{name}": value for name, value in module.evaluation.compute().items()}
        module.reset_train_figures()
        self.epochs.append(row)
        self._count_seconds()
        counts = module.evaluation.counts()
        if trainer.is_global_zero:
            try:
                self.folder.write_epoch(self.epochs, self.steps, counts, module.tokenizer, self.preview, self.seconds)
            except (OSError, SafetensorError) as error:
                raise VqlabError(f"cannot write to {self.folder.path}: {error}; the checkpoint of the epoch before is intact") from error
            self._tell(row, module)
        for logger in trainer.loggers:
            logger.log_metrics({k: v for k, v in row.items() if k not in ("epoch", "step")}, step=trainer.global_step)

    def _tell(self, row: dict[str, float], module: TokenizerModule) -> None:
        text = f"epoch {int(row['epoch'])}: loss {row['train/loss']:.4f}, test PSNR {row['test/hard/psnr']:.2f} dB"
        if "test/soft/psnr" in row:
            text += f" (soft {row['test/soft/psnr']:.2f})"
        for i, book in enumerate(module.tokenizer.quantizer.codebooks, 1):
            used, k = row[f"test/level{i}/utilization"], book.codebook_size
            text += f", level {i}: {used:.1%} of {k} codes used, perplexity {row[f'test/level{i}/perplexity']:.1f}"
        print(text, flush=True)
        numbers = range(1, len(module.train_levels) + 1)
        for i in numbers:
            used = row[f"train/level{i}/utilization"]
            if used < self.usage_warning:
                print(f"warning: level {i} used only {used:.1%} of its codes this epoch", flush=True)
        self._watch_margins({i: row.get(f"train/level{i}/margin") for i in numbers}, module, int(row["step"]))

    # -- checkpoint -------------------------------------------------------------------------------------------------------------

    def _count_seconds(self) -> None:
        now = time.perf_counter()
        self.seconds, self._since = self.seconds + now - self._since, now

    def state_dict(self) -> dict[str, Any]:
        self._count_seconds()
        return {"epochs": self.epochs, "steps": self.steps, "seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epochs, self.steps, self.seconds = list(state["epochs"]), list(state["steps"]), float(state["seconds"])


class TrainingBar(TQDMProgressBar):
    """A progress bar with the loss, and PSNR and utilization of the training batches since the epoch began."""

    def get_metrics(self, trainer: L.Trainer, module: L.LightningModule) -> dict[str, Any]:
        assert isinstance(module, TokenizerModule)
        shown: dict[str, Any] = {}
        if module.latest:
            shown["loss"] = f"{float(module.latest['loss']):.4f}"
            shown["psnr"] = f"{-10 * float(module.latest['reconstruction'].log10()):.2f}"
        for i, level in enumerate(module.train_levels, 1):
            counts = level.usage.counts
            shown[f"used{i}"] = f"{float((counts > 0).double().mean()):.0%}"
        return shown


def _lr(trainer: L.Trainer) -> float:
    return float(trainer.optimizers[0].param_groups[0]["lr"])

"""The Lightning module: one training step, one evaluation step, two learning rates."""

from __future__ import annotations

import math
from typing import Any

import lightning as L
import torch
from torch import Tensor

from vqlab.config import OptimConfig
from vqlab.data import ImageBatch
from vqlab.distributed import any_rank, own_rank, sum_over_ranks
from vqlab.evaluation import Evaluation, LevelMetricsList
from vqlab.losses import LossConfig, ReconstructionLoss
from vqlab.metrics import WeightedMeans
from vqlab.migrate import FORMAT_VERSION
from vqlab.quantizers import NonFiniteError, QuantizerOutput
from vqlab.tokenizer import Tokenizer


def warmup_cosine(step: int, total_steps: int, warmup_steps: int, final: float) -> float:
    """Learning-rate factor: linear from 0 to 1 over the warm-up, then half a cosine from 1 to `final`."""
    warmup = min(warmup_steps, total_steps // 2)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress))


class TokenizerModule(L.LightningModule):
    """Trains a tokenizer on L = the reconstruction's loss (by default mse / pixel_variance) + the quantizer's loss.

    pixel_variance: variance of the training pixels on [0, 1]; dividing by it makes the quantizer's weights independent of the data's scale.
    calibration_images: uint8 training images whose latent statistics are taken before each evaluation; None: the running ones are kept.
    total_steps: optimizer steps of the whole training: length of the learning-rate and temperature schedules.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        optim: OptimConfig,
        *,
        lr: float,
        pixel_variance: float,
        total_steps: int,
        memory_format: torch.memory_format = torch.contiguous_format,
        calibration_images: Tensor | None = None,
        loss: LossConfig | None = None,
    ) -> None:
        super().__init__()
        self.calibration_images = calibration_images
        self.tokenizer = tokenizer.to(memory_format=memory_format)
        self.optim, self.lr, self.total_steps = optim, lr, total_steps
        self.image_format = memory_format
        # In a tuple, so that a feature network is no part of checkpoints.
        self._reconstruction_loss = (ReconstructionLoss(loss or LossConfig(), pixel_variance),)
        distance = self._reconstruction_loss[0].distance
        self.train_levels = LevelMetricsList(tokenizer)
        self.train_means = WeightedMeans(("loss", "reconstruction", *(("feature_distance",) if distance else ())))
        # Part of a checkpoint: an epoch resumed in the middle counts all its batches.
        for metric in (self.train_means, *(metric for level in self.train_levels for metric in level.metrics())):
            metric.persistent(True)
        self.evaluation = Evaluation(tokenizer, distance)
        #: Figures of the latest step, for the step log and the progress bar.
        self.latest: dict[str, Tensor] = {}
        self.latest_parts: tuple[dict[str, Tensor], ...] = ()
        self.tokenizer.quantizer.prepare(total_steps)

    # -- training ---------------------------------------------------------------------------------------------------------------

    def training_step(self, batch: ImageBatch, batch_idx: int) -> Tensor:
        images = self._unit(batch.images)
        try:
            out = self.tokenizer.quantizer(self.tokenizer.encode_features(images))
        except NonFiniteError as error:
            raise NonFiniteError(f"step {self.global_step}: {error}") from error
        reconstruction = self.tokenizer.decode(self.decoder_input(out))
        reconstruction_loss, parts = self._reconstruction_loss[0].to(images.device)(reconstruction, images)
        loss = reconstruction_loss + out.loss
        bad = not bool(torch.isfinite(loss.detach()))
        if any_rank(bad, device=self.device)[0]:
            value = float(loss.detach()) if bad else "NaN or inf on another process"
            raise NonFiniteError(f"step {self.global_step}: the loss is {value}; lower lr or look at the latest steps in steps.csv")
        self.record(out, {"loss": loss.detach()} | parts)
        return loss

    def record(self, out: QuantizerOutput, figures: dict[str, Tensor]) -> None:
        """Add one batch to the figures of the epoch and of the latest step."""
        self.train_levels.update(self.tokenizer.quantizer, out)
        self.latest = figures
        self.latest_parts = out.parts
        self.train_means.update(self.latest, 1)

    def decoder_input(self, out: QuantizerOutput) -> Tensor:
        """What the decoder learns from: soft output for most of the batch, argmax codes and prefixes of the levels for the rest.

        The decoder so learns to read what ids decode to. Codes carry no gradient: nothing passes straight through the argmax.
        """
        quantizer, batch = self.tokenizer.quantizer, out.quantized.shape[0]
        hard = round(self.optim.hard_fraction * batch) if quantizer.is_soft else 0
        # Both shares may round up.
        short = min(round(self.optim.level_dropout * batch), batch - hard) if quantizer.num_levels > 1 else 0
        parts = []
        if hard:
            parts.append(quantizer.decode_indices(out.indices[:hard]).detach())
        if short:
            prefixes = torch.stack([prefix[hard : hard + short] for prefix in out.prefixes[:-1]])
            # Drawn on the CPU, whose random state is part of the checkpoint.
            chosen = torch.randint(prefixes.shape[0], (short,)).to(prefixes.device)
            parts.append(prefixes[chosen, torch.arange(short, device=prefixes.device)])
        return torch.cat([*parts, out.quantized[hard + short :]]) if parts else out.quantized

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        self.tokenizer.quantizer.after_step()

    def configure_gradient_clipping(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        # Lightning refuses to clip for fused optimizers under mixed precision because of loss scaling; bfloat16 has none.
        limit = self.optim.gradient_clip or math.inf
        norm = torch.nn.utils.clip_grad_norm_(self.tokenizer.parameters(), limit, foreach=True)
        if not bool(torch.isfinite(norm)):  # a finite loss may have gradients that overflow; one such step would ruin every weight
            raise NonFiniteError(f"step {self.global_step}: the norm of the gradient is {float(norm)}; the weights are unchanged")

    def configure_optimizers(self) -> Any:
        books = self.tokenizer.quantizer.codebook_parameters()
        owned = {id(p) for p in books}
        rest = [p for p in self.tokenizer.parameters() if p.requires_grad and id(p) not in owned]
        groups = [{"params": rest, "lr": self.lr, "weight_decay": self.optim.weight_decay}]
        if books:
            groups.append({"params": books, "lr": self.lr / self.optim.epsilon, "weight_decay": 0.0})
        optimizer = torch.optim.AdamW(groups, fused=True)
        warmup, final = self.optim.warmup_steps, self.optim.final_lr
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: warmup_cosine(step, self.total_steps, warmup, final))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["format_version"] = FORMAT_VERSION
        state = checkpoint["state_dict"]
        for name in self._figure_names():  # sums of this process alone; the checkpoint is that of all
            state[name] = sum_over_ranks(state[name])

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = checkpoint["state_dict"]
        if own_rank() > 0:  # counted once
            for name in self._figure_names():
                state[name] = torch.zeros_like(state[name])

    def _figure_names(self) -> list[str]:
        return [name for name in self.state_dict() if name.startswith(("train_levels.", "train_means."))]

    # -- evaluation -------------------------------------------------------------------------------------------------------------

    def on_validation_epoch_start(self) -> None:
        self.evaluation.reset()
        self.calibrate()

    @torch.no_grad()
    def calibrate(self, chunk: int = 256) -> None:
        """Latent statistics of the encoder as it is now, from `calibration_images`."""
        if self.calibration_images is None:
            return
        with self.trainer.precision_plugin.forward_context():
            chunks = self.calibration_images.to(self.device).split(chunk)
            features = torch.cat([self.tokenizer.encode_features(self._unit(images)) for images in chunks])
        self.tokenizer.quantizer.calibrate(features)

    def validation_step(self, batch: ImageBatch, batch_idx: int) -> None:
        self.evaluation.update(self.tokenizer, self._unit(batch.images))

    # -- figures ----------------------------------------------------------------------------------------------------------------

    def train_figures(self) -> dict[str, float]:
        """Figures of the training epoch so far: loss, reconstruction (mse on [0, 1]) and per level use, loss parts, diagnostics."""
        figures = {name: float(value) for name, value in self.train_means.compute().items()}
        for i, (level, book) in enumerate(zip(self.train_levels, self.tokenizer.quantizer.codebooks, strict=True), 1):
            values = level.compute() | {name: float(value) for name, value in book.diagnostics(thorough=True).items()}
            figures |= {f"level{i}/{name}": value for name, value in values.items()}
        return figures

    def reset_train_figures(self) -> None:
        """Start the next epoch's figures from nothing."""
        self.train_means.reset()
        for level in self.train_levels:
            level.reset()

    def _unit(self, images: Tensor) -> Tensor:
        return images.to(torch.float32, memory_format=self.image_format).div_(255.0)

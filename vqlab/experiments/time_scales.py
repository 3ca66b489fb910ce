"""Encoder and prototypes learning together: what the ratio of their learning rates does to the margin and to the separation.

epsilon = learning rate of encoder and decoder / learning rate of the prototypes. The analysis of DDCL-Attention (arXiv:2604.03850) asks for
prototypes that are much the faster. Two systems are trained on images, both pure DDCL (no term for equal use, none for entropy):

    absolute    tokens as the encoder gives them, T constant: what the stability condition is stated for
    relative    tokens normalized per channel, T = tau tr Cov(z): vqlab's quantizer
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pandas as pd
import torch
from torch import Tensor, nn

from vqlab.assignment import covariance, critical_temperature, separation
from vqlab.backbones import ConvConfig, ConvDecoder, ConvEncoder
from vqlab.images import as_unit_images, to_network, to_unit
from vqlab.metrics import psnr_per_image
from vqlab.quantizers import DDCLCodebook, Quantizer

System = Literal["absolute", "relative"]
OptimizerName = Literal["SGD", "Adam"]
SYSTEMS: tuple[System, ...] = ("absolute", "relative")
OPTIMIZERS: tuple[OptimizerName, ...] = ("SGD", "Adam")
EPSILONS = (0.01, 0.1, 0.3, 1.0, 3.0)
#: Learning rates of encoder and decoder.
LEARNING_RATE: dict[OptimizerName, float] = {"SGD": 0.05, "Adam": 1e-3}
DIM, TAU, LOSS_WEIGHT, CODEBOOK_SIZE = 8, 0.1, 0.25, 64


class FixedTemperatureCodebook(DDCLCodebook):
    """DDCL whose temperature is that of its first batch for ever, whatever becomes of the tokens."""

    fixed: Tensor | None = None

    @property
    def temperature(self) -> Tensor:
        if self.fixed is None and bool(self.initialised[1]):
            self.fixed = super().temperature.clone()
        return super().temperature if self.fixed is None else self.fixed


@dataclass(frozen=True)
class CoupledRun:
    """One training. trace: rows of step, margin (T_c / T of the batch's tokens), separation and separation_nearest relative to the
    tokens' scale, reconstruction (mse).  psnr: of ids on held-out images, dB.  utilization: share of codes that they choose."""

    system: System
    optimizer: OptimizerName
    epsilon: float
    trace: pd.DataFrame
    psnr: float
    utilization: float

    @property
    def collapsed(self) -> bool:
        """Whether the prototypes ended within a hundredth of the tokens' scale of their nearest neighbours, or the training diverged."""
        last = float(self.trace["separation_nearest"].iloc[-1])
        return not last > 0.01


class CoupledSystem(nn.Module):
    """A small convolutional autoencoder around one DDCL level."""

    def __init__(self, system: System, codebook_size: int) -> None:
        super().__init__()
        relative = system == "relative"
        book = (DDCLCodebook if relative else FixedTemperatureCodebook)(
            DIM,
            codebook_size,
            tau_start=TAU,
            tau_shape="constant",
            loss_weight=LOSS_WEIGHT,
            usage_weight=0.0,
            entropy_weight=0.0,
            covariance_momentum=1.0,
        )
        self.quantizer = Quantizer(DIM, [book], normalize=relative)
        config = ConvConfig(width=24, residual_blocks=1, residual_width=8)
        # Normalisation would take a bias away.
        self.encoder, self.decoder = ConvEncoder(DIM, config, 3, latent_bias=not relative), ConvDecoder(DIM, config, 3)

    def tokens(self, images: Tensor) -> Tensor:
        """What enters the level: (n, dim)."""
        features = self.encoder(to_network(images))
        return self.quantizer.space.enter(features.movedim(1, -1).reshape(-1, DIM))

    @torch.no_grad()
    def decode_ids(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images decoded from ids, clamped, and the ids."""
        ids = self.quantizer.encode(self.encoder(to_network(images)))
        return to_unit(self.decoder(self.quantizer.decode_indices(ids))).clamp(0, 1), ids


def train_coupled(
    system: System,
    optimizer_name: OptimizerName,
    epsilon: float,
    train: Tensor,
    test: Tensor,
    *,
    steps: int,
    seed: int,
    codebook_size: int = CODEBOOK_SIZE,
    batch: int = 32,
    log_every: int = 10,
) -> CoupledRun:
    """Train one system on uint8 images (n, 3, h, w) and watch it; stops early, with what it has, where it diverges."""
    torch.manual_seed(seed)
    model, draw = CoupledSystem(system, codebook_size).train(), torch.Generator().manual_seed(seed)
    images = as_unit_images(train)
    variance = float(images.var())
    book = model.quantizer.codebooks[0]
    assert isinstance(book, DDCLCodebook)
    lr = LEARNING_RATE[optimizer_name]
    rest = [*model.encoder.parameters(), *model.decoder.parameters()]
    groups = [{"params": rest, "lr": lr}, {"params": book.codebook_parameters(), "lr": lr / epsilon}]
    optimizer = torch.optim.Adam(groups) if optimizer_name == "Adam" else torch.optim.SGD(groups, momentum=0.9)
    rows = []
    for step in range(steps + 1):
        chosen = images[torch.randint(len(images), (batch,), generator=draw)]
        out = model.quantizer(model.encoder(to_network(chosen)))
        mse = (to_unit(model.decoder(out.quantized)) - chosen).square().mean()
        loss = mse / variance + out.loss
        if not bool(torch.isfinite(loss.detach())):
            rows.append({"step": step, "margin": 0.0, "separation": 0.0, "separation_nearest": 0.0, "reconstruction": float("nan")})
            return CoupledRun(system, optimizer_name, epsilon, pd.DataFrame(rows), float("nan"), 0.0)
        if step % log_every == 0:
            rows.append({"step": step, **_state(model, book, chosen), "reconstruction": float(mse.detach())})
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(rest, 1.0)
        optimizer.step()
    model.eval()
    unit = as_unit_images(test)
    decoded, ids = model.decode_ids(unit)
    return CoupledRun(
        system,
        optimizer_name,
        epsilon,
        pd.DataFrame(rows),
        float(psnr_per_image(decoded, unit).mean()),
        len(ids.unique()) / codebook_size,
    )


@torch.no_grad()
def _state(model: CoupledSystem, book: DDCLCodebook, images: Tensor) -> dict[str, float]:
    cov = covariance(model.tokens(images))
    scale = cov.trace().clamp_min(1e-24).sqrt()
    distances = separation(book.prototypes)
    return {
        "margin": float(critical_temperature(cov) / book.temperature),
        "separation": float(distances.minimum / scale),
        "separation_nearest": float(distances.nearest_mean / scale),
    }

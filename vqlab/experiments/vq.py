"""Codebook use of DDCL against hard vector quantization on CIFAR-10, by the tokenizers' own training."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from vqlab.backbones import ConvConfig
from vqlab.config import OptimConfig, RunConfig, TrainConfig
from vqlab.experiments.intervals import over_seeds
from vqlab.experiments.report import Claim, Report, Settings, Verdict
from vqlab.results import compare_runs
from vqlab.results.run import Run
from vqlab.training import train

K = 64


@dataclass(frozen=True)
class Kind:
    """A quantizer and what differs from its defaults."""

    quantizer: str
    codebook: dict[str, Any] = field(default_factory=dict)
    normalize_latents: bool = True
    epsilon: float | None = None


#: The codebook by gradient at the encoder's learning rate, from a random start, without revival, as in the original VQ-VAE.
PLAIN: dict[str, Any] = {"update": "gradient", "init": "random", "revival_threshold": 0.0}
KINDS = {
    "ddcl": Kind("ddcl"),
    "vq-plain": Kind("vqvae", PLAIN, epsilon=1.0),
    "vq-plain-free-latents": Kind("vqvae", PLAIN, normalize_latents=False, epsilon=1.0),
    "vq-improved": Kind("vqvae"),
}


def _config(name: str, kind: Kind, settings: Settings, root: Path, seed: int) -> TrainConfig:
    optim = OptimConfig(warmup_steps=4 if settings.quick else 100)
    if kind.epsilon is not None:
        optim = replace(optim, epsilon=kind.epsilon)
    return TrainConfig(
        quantizer=kind.quantizer,
        data="sample" if settings.quick else "cifar10",
        codebook_size=K,
        epochs=2,
        batch_size=100 if settings.quick else 128,
        seed=seed,
        name=f"{name}-seed{seed}",
        codebook=dict(kind.codebook),
        normalize_latents=kind.normalize_latents,
        conv=ConvConfig(width=16 if settings.quick else 24, residual_width=8),
        optim=optim,
        run=RunConfig(root=str(root), data_root=str(settings.data_root), threads=1, progress=False, tensorboard=False, usage_warning=0.0),
    )


def run(settings: Settings) -> Report:
    """Train every kind from every seed with K = 64; use after each epoch, PSNR at the end. VqlabError where CIFAR-10 is missing."""
    report = Report("vq", "codebook use of DDCL and hard vector quantization on CIFAR-10")
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            name: [Run.load(train(_config(name, kind, settings, Path(folder), seed))) for seed in range(settings.seeds)]
            for name, kind in KINDS.items()
        }
        figure = compare_runs([own[0].path for own in runs.values()], settings.out / "vq").figure
    report.figures.append(figure)
    example = next(iter(runs.values()))[0]
    width = example.config["conv"]["width"]
    report.notes.append(
        f"{example.config['data']}, K = {K}, width {width}, {len(example.epochs)} epochs, {settings.seeds} seeds; ids of the test split"
    )
    report.notes.append("vq-plain: codebook by gradient, random start, no revival; free latents: scale not fixed")
    use: dict[str, list[list[float]]] = {name: [list(run.column("test/level1/utilization")) for run in own] for name, own in runs.items()}
    rows = []
    for name, own in runs.items():
        row = {"quantizer": name}
        for position, epoch in enumerate(example.epochs):
            row[f"used after epoch {epoch}"] = str(over_seeds([values[position] for values in use[name]]))
        row["perplexity, last"] = f"{over_seeds([float(run.column('test/level1/perplexity')[-1]) for run in own]).value:.1f}"
        row["PSNR of ids, last (dB)"] = str(over_seeds([float(run.column("test/hard/psnr")[-1]) for run in own]))
        rows.append(row)
    report.tables["Use of the codebook"] = pd.DataFrame(rows)
    report.claims += _claims(use)
    return report


def _claims(use: dict[str, list[list[float]]]) -> list[Claim]:
    first = {name: over_seeds([values[0] for values in own]) for name, own in use.items()}
    lowest = min(values[0] for values in use["ddcl"])
    full: Verdict = "agrees" if lowest == 1 else "partly" if lowest > 0.95 else "disagrees"
    hard = [name for name in first if name.startswith("vq-plain") and first[name].value < 0.5]
    return [
        Claim("DDCL: 100 % of the codebook in use from epoch 1", "100 %", f"{first['ddcl']} after epoch 1", full),
        Claim(
            "hard VQ: few codes in use at first",
            "18.8 % at epoch 1, 100 % at epoch 44",
            "; ".join(f"{name} {first[name]}" for name in use if name != "ddcl"),
            "partly" if hard else "disagrees",
            "holds for a plain VQ-VAE; k-means start, moving averages and revival fill the codebook at once",
        ),
    ]

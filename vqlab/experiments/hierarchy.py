"""Hierarchical compression of documents: stacks of readouts on 20 Newsgroups, V at every level, compression against accuracy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from vqlab.experiments.classify import linear_reference
from vqlab.experiments.encoders import load_text_encoder
from vqlab.experiments.features import TokenFeatures
from vqlab.experiments.intervals import Labels, accuracy, as_labels, bootstrap
from vqlab.experiments.report import Claim, Report, Settings
from vqlab.experiments.text import PLANS, QUICK, features_of
from vqlab.readout import ReadoutStack
from vqlab.results.style import MARKERS, draw, level_style, panels, save, styled

#: Prototypes of the levels of each stack.
STACKS = ((128,), (128, 64), (128, 64, 32), (128, 64, 32, 16))
QUICK_STACKS = ((16, 8), (16, 8, 4))
CARRIES = ("tokens", "summaries")


@dataclass(frozen=True)
class StackFit:
    """A trained stack. predictions: from the last level, (n,) on the test split.  parts: per level, name -> value at every step."""

    predictions: Labels
    parts: list[dict[str, list[float]]]


class StackClassifier(nn.Module):
    """Stack, then a linear head on the last level alone, so that everything the head knows has passed all levels."""

    def __init__(self, dim: int, sizes: tuple[int, ...], carry: str, classes: int, codebook_dim: int = 64) -> None:
        super().__init__()
        self.stack = ReadoutStack(dim, sizes, carry=carry, codebook_dim=min(codebook_dim, dim))
        width = sizes[-1] + dim
        self.head = nn.Sequential(nn.BatchNorm1d(width), nn.Linear(width, classes))

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, list[dict[str, Tensor]]]:
        """Logits (b, classes), the loss of all levels, and their parts."""
        outputs = self.stack(tokens, mask)
        last = outputs[-1]
        logits = self.head(torch.cat([last.histogram, last.pooled], 1))
        return logits, torch.stack([out.loss for out in outputs]).sum(), [out.parts for out in outputs]


def fit_stack(
    train: TokenFeatures, test: TokenFeatures, sizes: tuple[int, ...], carry: str, classes: int, epochs: int, seed: int, lr: float = 2e-3
) -> StackFit:
    """Train a stack and its head end to end, predict `test`."""
    torch.manual_seed(seed)
    network = StackClassifier(train.dim, sizes, carry, classes)
    steps = epochs * -(-len(train) // 64)
    network.stack.prepare(steps)
    groups = [*network.stack.parameter_groups(lr), {"params": list(network.head.parameters()), "lr": lr}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [g["lr"] for g in optimizer.param_groups], total_steps=steps + 1)
    history: list[dict[str, list[float]]] = [{"V": [], "L_q": [], "L_OLS": []} for _ in sizes]
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for batch in train.batches(64, generator):
            logits, extra, parts = network(batch.tokens, batch.mask)
            optimizer.zero_grad()
            (nn.functional.cross_entropy(logits, batch.labels) + extra).backward()
            optimizer.step()
            schedule.step()
            network.stack.after_step()
            for level, own in zip(history, parts, strict=True):
                for name, values in level.items():
                    values.append(float(own[name]))
    network.eval()
    predictions = np.empty(len(test), dtype=np.int64)
    with torch.no_grad():
        for batch in test.batches(256):
            predictions[batch.which.numpy()] = network(batch.tokens, batch.mask)[0].argmax(1).numpy()
    return StackFit(predictions, history)


def run(settings: Settings) -> Report:
    """Stacks of every depth, both ways to hand on; accuracy from the last level and the smallest V of each level."""
    plan, stacks = (QUICK, QUICK_STACKS) if settings.quick else (PLANS["20news"], STACKS)
    encoder = load_text_encoder(settings.encoder)
    features = features_of("20news", plan, encoder, settings.data, settings.cache)
    classes, labels = len(features.data.classes), as_labels(features.test.labels)
    tokens = float(features.test.lengths.float().mean())
    report = Report("hierarchy", "stacks of readouts: compression against accuracy")
    report.notes.append(
        f"encoder {encoder.name}; {len(features.train)} training and {len(features.test)} test posts of 20 Newsgroups, "
        f"{tokens:.0f} tokens of {features.train.dim} channels on average; {settings.seeds} seeds, {plan.epochs} epochs"
    )
    resamples = 20 if settings.quick else 100
    reference = bootstrap(accuracy, labels, [linear_reference(features.train, features.test)], resamples)
    rows, smallest, steps, error, shown = [], math.inf, 0, 0.0, None
    for carry in CARRIES:
        for sizes in stacks:
            fits = [fit_stack(features.train, features.test, sizes, carry, classes, plan.epochs, seed) for seed in range(settings.seeds)]
            lowest = [min(min(fit.parts[level]["V"]) for fit in fits) for level in range(len(sizes))]
            smallest = min(smallest, *lowest)
            steps += sum(len(fit.parts[0]["V"]) for fit in fits)
            error = max(error, *(_identity_error(fit) for fit in fits))
            shown = fits[0]
            vectors = tokens if carry == "tokens" else float(sizes[-2]) if len(sizes) > 1 else tokens
            rows.append(
                {
                    "handed on": carry,
                    "prototypes": " > ".join(map(str, sizes)),
                    "vectors into the last level": f"{vectors:.0f}",
                    "bits per document": f"{vectors * math.log2(sizes[-1]):.0f}",
                    "compression": f"{tokens * features.train.dim * 32 / (vectors * math.log2(sizes[-1])):.0f} x",
                    "accuracy": str(bootstrap(accuracy, labels, [fit.predictions for fit in fits], resamples)),
                    "smallest V per level": ", ".join(f"{v:.3g}" for v in lowest),
                }
            )
    rows.append({**dict.fromkeys(rows[0], ""), "handed on": "logistic regression on the mean", "accuracy": str(reference)})
    report.tables["Compression against accuracy"] = pd.DataFrame(rows)
    report.notes.append("compression: float32 numbers of all tokens against the ids that the last level assigns")
    assert shown is not None
    report.figures.append(save(_figure(shown, rows[:-1]), settings.out / "hierarchy" / "hierarchy.png"))
    levels = sum(len(s) for s in stacks) * len(CARRIES)
    report.claims += [
        Claim(
            "V >= 0 at every level and step",
            "V >= 0 at all levels",
            f"smallest V {smallest:.3g} over {levels} levels, {steps} steps",
            "agrees" if smallest >= 0 else "disagrees",
            "V is a sum of squares: it cannot be negative in exact arithmetic; this tests the implementation",
        ),
        Claim(
            "exact decomposition L_q = L_OLS + V",
            "exact",
            f"largest relative error {error:.1g} in float32, {steps} steps",
            "agrees" if error < 1e-5 else "disagrees",
            "the layer forms L_q as this sum; the tests compare all three with their definitions in float64",
        ),
    ]
    return report


def _identity_error(fit: StackFit) -> float:
    triples = ((q, o, v) for level in fit.parts for q, o, v in zip(level["L_q"], level["L_OLS"], level["V"], strict=True))
    return max(abs(q - o - v) / max(q, 1e-12) for q, o, v in triples)


@styled
def _figure(fit: StackFit, rows: list[dict[str, str]]) -> Figure:
    figure, (left, right) = panels(2)
    for level, parts in enumerate(fit.parts, 1):
        draw(left, np.arange(len(parts["V"])), parts["V"], linestyle=level_style(level), label=f"level {level}")
    left.set_xlabel("step")
    left.set_ylabel("V")
    left.set_yscale("log")
    left.legend()
    for marker, carry in zip(MARKERS, CARRIES, strict=False):
        own = [row for row in rows if row["handed on"] == carry]
        x = [float(row["compression"].split()[0]) for row in own]
        y = [float(row["accuracy"].split()[0]) for row in own]
        right.plot(x, y, marker=marker, linestyle="-", label=carry)
    right.set_xscale("log")
    right.set_xlabel("compression")
    right.set_ylabel("accuracy")
    right.legend(title="handed on")
    return figure

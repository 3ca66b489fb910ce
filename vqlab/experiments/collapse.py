"""Does a bank of prototypes, slots or latents merge while it is trained together with an encoder?

    CIFAR-10 images --> small ViT, from scratch ------.
                                                       >-- tokens --> DDCL | Slot Attention | Perceiver --> head
    texts --> frozen encoder --> trained layers ------'

All three share optimizer, steps and two time scales (the bank learns faster by 1 / epsilon). Each starts in its usual way, and again
with all vectors of its bank 1 % apart: the first asks whether they merge, the second whether they come apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import timm
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from vqlab.assignment import separation
from vqlab.data import load_images
from vqlab.data.arrays import Split
from vqlab.errors import VqlabError
from vqlab.experiments.encoders import load_text_encoder
from vqlab.experiments.features import TokenFeatures
from vqlab.experiments.interpret import patches_figure
from vqlab.experiments.intervals import Interval, over_seeds
from vqlab.experiments.report import Claim, Report, Settings, Verdict
from vqlab.experiments.text import PLANS, QUICK, features_of
from vqlab.images import as_unit_images
from vqlab.readout import DDCLReadout, PerceiverPool, SlotAttentionPool
from vqlab.results.style import REFERENCE, draw, panels, save, styled

DIM, PROTOTYPES, EPSILON, LR = 64, 16, 0.1, 1e-3
METHODS = {"ddcl": "DDCL", "slot": "Slot Attention", "perceiver": "Perceiver latents"}
STARTS = ("usual", "merged")
#: A bank whose nearest vectors are closer than this share of their own size counts as merged.
MERGED = 0.05


@dataclass(frozen=True)
class Batch:
    """Inputs of an encoder, the mask of its tokens (None: no padding), and labels."""

    inputs: Tensor
    mask: Tensor | None
    labels: Tensor


@dataclass(frozen=True)
class Task:
    """What is trained on. encoder: makes a fresh one, inputs -> tokens (b, n, DIM).  batches: endless, from a seed.  test: batches."""

    name: str
    classes: int
    encoder: Callable[[], nn.Module]
    batches: Callable[[int], Iterator[Batch]]
    test: list[Batch]


@dataclass(frozen=True)
class Trace:
    """One training. Every list has one entry per recorded step: `nearest` mean distance of a bank's vectors to their nearest, `minimum`
    S(P), both over the root mean square size of the vectors around their mean at the usual start; `outputs` the same of what the bank
    reads from an input; `margin` T_c / T (DDCL alone, else NaN).  accuracy: on the test batches at the end."""

    steps: list[int]
    nearest: list[float]
    minimum: list[float]
    outputs: list[float]
    margin: list[float]
    accuracy: float
    network: CoupledNetwork


class CoupledNetwork(nn.Module):
    """Encoder, readout with a bank of vectors, head; all trained together."""

    def __init__(self, encoder: nn.Module, method: str, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        readouts: dict[str, Callable[[], nn.Module]] = {
            "ddcl": lambda: DDCLReadout(DIM, PROTOTYPES, init="random"),
            "slot": lambda: SlotAttentionPool(DIM, PROTOTYPES),
            "perceiver": lambda: PerceiverPool(DIM, PROTOTYPES),
        }
        self.readout = readouts[method]()
        self.head = nn.Sequential(nn.BatchNorm1d(DIM), nn.Linear(DIM, classes))

    @property
    def bank(self) -> nn.Parameter:
        """The vectors that compete, (PROTOTYPES, DIM)."""
        if isinstance(self.readout, DDCLReadout):
            return self.readout.codebook.prototypes
        return self.readout.initial if isinstance(self.readout, SlotAttentionPool) else self.readout.latents  # type: ignore[return-value]

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (b, classes), the readout's own loss, what each vector of the bank reads (b, PROTOTYPES, DIM)."""
        tokens = self.encoder(batch.inputs)
        if isinstance(self.readout, DDCLReadout):
            out = self.readout(tokens, batch.mask)
            return self.head(out.pooled), out.loss, out.summaries
        assert isinstance(self.readout, SlotAttentionPool | PerceiverPool)
        mask = batch.mask if batch.mask is not None else torch.ones(tokens.shape[:2], dtype=torch.bool)
        slots = self.readout.slots(tokens, mask)
        return self.head(slots.mean(1)), tokens.new_zeros(()), slots


def train(task: Task, method: str, start: str, steps: int, seed: int) -> Trace:
    """Train encoder, readout and head together for `steps` steps from the usual or the merged start."""
    torch.manual_seed(seed)
    network = CoupledNetwork(task.encoder(), method, task.classes)
    bank = network.bank
    with torch.no_grad():
        size = float((bank - bank.mean(0)).square().sum(1).mean().sqrt())
        if start == "merged":
            bank.copy_(bank.mean(0) + 0.01 * (bank - bank.mean(0)))
    rest = [p for p in network.parameters() if p is not bank]
    optimizer = torch.optim.AdamW([{"params": rest, "lr": LR}, {"params": [bank], "lr": LR / EPSILON, "weight_decay": 0.0}])
    if isinstance(network.readout, DDCLReadout):
        network.readout.prepare(steps)
    trace = Trace([], [], [], [], [], 0.0, network)
    batches = task.batches(seed)
    for step in range(steps + 1):
        batch = next(batches)
        logits, extra, slots = network(batch)
        if step % max(1, steps // 25) == 0:
            _record(trace, network, slots.detach(), step, size)
        if step == steps:
            break
        optimizer.zero_grad()
        (nn.functional.cross_entropy(logits, batch.labels) + extra).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        if isinstance(network.readout, DDCLReadout):
            network.readout.after_step()
    network.eval()
    with torch.no_grad():
        right = sum(int((network(batch)[0].argmax(1) == batch.labels).sum()) for batch in task.test)
    share = right / sum(len(batch.labels) for batch in task.test)
    return Trace(trace.steps, trace.nearest, trace.minimum, trace.outputs, trace.margin, share, network)


def _record(trace: Trace, network: CoupledNetwork, slots: Tensor, step: int, size: float) -> None:
    found = separation(network.bank.detach())
    scales = (slots - slots.mean(1, keepdim=True)).square().sum(-1).mean(1).sqrt().clamp_min(1e-12)
    # Of vectors read from one input: how far the nearest two are, for the size of the vectors themselves.
    sizes = slots.square().sum(-1).mean(1).sqrt().clamp_min(1e-12)
    nearest = torch.stack([separation(own).nearest_mean for own in slots[:16]])
    trace.steps.append(step)
    trace.nearest.append(float(found.nearest_mean) / size)
    trace.minimum.append(float(found.minimum) / size)
    trace.outputs.append(float((nearest / sizes[:16]).mean()) if scales.isfinite().all() else float("nan"))
    margin = network.readout.codebook.margin if isinstance(network.readout, DDCLReadout) else torch.tensor(float("nan"))
    trace.margin.append(float(margin))


# -- tasks -----------------------------------------------------------------------------------------------------------------------


class SmallViT(nn.Module):
    """A ViT of timm, from scratch: images (b, 3, 32, 32) in [0, 1] -> patch tokens (b, 64, DIM), class token dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.vit: Any = timm.create_model(
            "vit_tiny_patch16_224", pretrained=False, img_size=32, patch_size=4, embed_dim=DIM, depth=2, num_heads=4, num_classes=0
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.vit.forward_features(2 * images - 1)[:, self.vit.num_prefix_tokens :]


def vision_task(data: str, settings: Settings, test_size: int, batch_size: int = 32) -> Task:
    """CIFAR-10 ("cifar10") or its sample ("sample")."""
    images = load_images(data, settings.data_root)

    def batches(seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            for which in torch.randperm(len(images.train.labels), generator=generator).split(batch_size):
                if len(which) == batch_size:
                    yield _images(images.train, which)

    test = [_images(images.test, which) for which in torch.arange(min(test_size, len(images.test.labels))).split(256)]
    return Task(f"ViT tokens, {data}", len(images.classes), SmallViT, batches, test)


def _images(split: Split, which: Tensor) -> Batch:
    return Batch(as_unit_images(split.plain(which)), None, split.labels[which].long())


class Adapter(nn.Module):
    """What is trained above frozen tokens, each by itself, so that padding stays apart: (b, n, dim) -> (b, n, DIM)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.project = nn.Linear(dim, DIM)
        self.mlp = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.project(tokens)
        return x + self.mlp(x)


def text_task(name: str, settings: Settings, batch_size: int = 32) -> Task:
    """A text collection as frozen tokens."""
    encoder = load_text_encoder(settings.encoder)
    features = features_of(name, QUICK if settings.quick else PLANS[name], encoder, settings.data, settings.cache)

    def batches(seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield from (b for b in _token_batches(features.train, batch_size, generator) if len(b.labels) == batch_size)

    test = list(_token_batches(features.test, 256, None))[:: 1 if settings.quick else 2]
    return Task(f"{name}, {encoder.name.split(' ')[0]}", len(features.data.classes), lambda: Adapter(features.train.dim), batches, test)


def _token_batches(features: TokenFeatures, size: int, generator: torch.Generator | None) -> Iterator[Batch]:
    for batch in features.batches(size, generator):
        yield Batch(batch.tokens, batch.mask, batch.labels)


# -- the experiment --------------------------------------------------------------------------------------------------------------


def run(settings: Settings) -> Report:
    """Both tasks where their data can be had, every method and start, over the seeds."""
    steps = 30 if settings.quick else 100
    report = Report("collapse", "does a bank of prototypes, slots or latents merge in coupled training")
    report.notes.append(
        f"{PROTOTYPES} vectors of {DIM} channels, {steps} steps of 32 inputs, AdamW {LR}, bank {LR / EPSILON:g}, {settings.seeds} seeds"
    )
    makers: list[Callable[[], Task]] = [
        lambda: vision_task("sample" if settings.quick else "cifar10", settings, 200 if settings.quick else 1000),
        lambda: text_task("20news", settings),
    ]
    failures = []
    for number, make in enumerate(makers):
        try:
            task = make()
        except VqlabError as error:
            failures.append(str(error))
            continue
        traces = {
            (method, start): [train(task, method, start, steps, seed) for seed in range(settings.seeds)]
            for method in METHODS
            for start in STARTS
        }
        report.tables[task.name] = _table(traces)
        report.figures.append(save(_figure(traces), settings.out / "collapse" / f"separation-{number}.png"))
        report.claims += _claims(task.name, traces)
        if number == 0:
            report.figures.append(_patches(task, traces["ddcl", "usual"][0].network, settings))
    if len(failures) == len(makers):
        raise VqlabError("; ".join(failures))
    report.notes += [f"left out: {reason}" for reason in failures]
    report.notes.append(
        "nearest, S(P): distances in the bank over the size of the bank at its usual start; outputs: relative to their own size"
    )
    return report


def _table(traces: dict[tuple[str, str], list[Trace]]) -> pd.DataFrame:
    rows = []
    for (method, start), runs in traces.items():
        first, last = (over_seeds([run.nearest[i] for run in runs]) for i in (0, -1))
        rows.append(
            {
                "readout": METHODS[method],
                "start": start,
                "nearest, first step": f"{first.value:.3f}",
                "nearest, last step": str(last),
                "S(P), last step": str(over_seeds([run.minimum[-1] for run in runs])),
                "outputs, last step": str(over_seeds([run.outputs[-1] for run in runs])),
                "margin, last step": f"{np.mean([run.margin[-1] for run in runs]):.1f}" if method == "ddcl" else "",
                "accuracy": str(over_seeds([run.accuracy for run in runs])),
            }
        )
    return pd.DataFrame(rows)


def _claims(name: str, traces: dict[tuple[str, str], list[Trace]]) -> list[Claim]:
    last: dict[tuple[str, str], Interval] = {key: over_seeds([run.nearest[-1] for run in runs]) for key, runs in traces.items()}
    kept, apart = (last["ddcl", start].value > MERGED for start in STARTS)
    peers = [METHODS[m] for m in METHODS if m != "ddcl" and last[m, "usual"].value <= MERGED]
    stuck = [METHODS[m] for m in METHODS if m != "ddcl" and last[m, "merged"].value <= MERGED]
    verdict: Verdict = "agrees" if kept and apart else "partly" if kept or apart else "disagrees"
    return [
        Claim(
            f"{name}: prototypes of DDCL do not merge, and come apart from a merged start",
            "collapse-free",
            f"nearest distance {last['ddcl', 'usual']} from the usual, {last['ddcl', 'merged']} from the merged start (0.01 of it)",
            verdict,
        ),
        Claim(
            f"{name}: peers collapse under the same coupled training",
            "Slot Attention and Perceiver latents may collapse",
            "; ".join(f"{METHODS[m]} {last[m, 'usual']} usual, {last[m, 'merged']} merged" for m in METHODS if m != "ddcl"),
            "agrees" if len(peers) == 2 else "partly" if peers or stuck else "disagrees",
            f"merge from the usual start: {', '.join(peers) or 'none'}; stay merged from the merged start: {', '.join(stuck) or 'none'}",
        ),
    ]


@torch.no_grad()
def _patches(task: Task, network: CoupledNetwork, settings: Settings) -> Path:
    """The patches with the largest q of each prototype: what a prototype of the ViT's tokens stands for."""
    images = torch.cat([batch.inputs for batch in task.test])[:400]
    out = network.eval().readout(network.encoder(images))
    patches = images.unfold(2, 4, 4).unfold(3, 4, 4).movedim(1, 3).reshape(-1, 3, 4, 4)
    return save(patches_figure(patches, out.assignment.flatten(0, 1)), settings.out / "collapse" / "patches.png")


@styled
def _figure(traces: dict[tuple[str, str], list[Trace]]) -> Figure:
    figure, axes = panels(2)
    for axis, start in zip(axes, STARTS, strict=True):
        for method, name in METHODS.items():
            runs = traces[method, start]
            values = np.array([run.nearest for run in runs])
            line = draw(axis, runs[0].steps, values.mean(0), label=name)
            axis.fill_between(runs[0].steps, values.min(0), values.max(0), color=line.get_color(), alpha=0.15, lw=0)
        axis.axhline(MERGED, color=REFERENCE, lw=0.8)
        axis.set_yscale("log")
        axis.set_xlabel("step")
        axis.set_ylabel("nearest distance in the bank")
        axis.set_title(f"{start} start", fontsize=9)
    axes[0].legend()
    return figure

"""`vqlab reproduce stability`: the phase boundary of collapse, and the two time scales of encoder and prototypes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from vqlab.data import load_images
from vqlab.experiments.phase_boundary import PREDICTED, PhaseBoundary, measure_phase_boundary
from vqlab.experiments.time_scales import EPSILONS, OPTIMIZERS, SYSTEMS, CoupledRun, train_coupled
from vqlab.results.style import REFERENCE, draw, legend_below, log_axis, panels, save, styled
from vqlab.storage import write_atomically

RATIOS = [0.5, 1.0, 1.5, 1.9, 2.1, 2.5, 3.0, 3.5, 3.9, 4.1, 4.5, 5.0, 6.0]
SHADES = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00")  # from the smallest epsilon to the largest


@dataclass(frozen=True)
class StabilityResult:
    """What was measured, and the files that show it."""

    boundary: PhaseBoundary
    runs: list[CoupledRun]
    summary: pd.DataFrame
    markdown: Path
    figures: list[Path]


def run(out: Path, quick: bool = False, seed: int = 0) -> StabilityResult:
    """Measure both and write stability.md, boundary.csv, runs.csv, traces.csv and two figures into `out`."""
    data = load_images("sample")
    steps = 100 if quick else 1000
    boundary = measure_phase_boundary(image_tokens(data.train.images, seed), RATIOS)
    seeds = [seed] if quick else [seed, seed + 1, seed + 2]
    runs = [
        train_coupled(system, optimizer, epsilon, data.train.images, data.test.images, steps=steps, seed=s)
        for system in SYSTEMS
        for optimizer in OPTIMIZERS
        for epsilon in EPSILONS
        for s in seeds
    ]
    summary = summarise(runs)
    figures = [
        save(boundary_figure(boundary), out / "phase-boundary.png"),
        *(
            save(traces_figure([r for r in runs if r.system == system], len(seeds)), out / f"time-scales-{system}.png")
            for system in SYSTEMS
        ),
    ]
    tables = {"boundary": boundary.rates, "runs": summary, "traces": traces(runs)}
    for name, table in tables.items():
        write_atomically(out / f"{name}.csv", lambda path, table=table: table.to_csv(path, index=False))
    text = to_markdown(boundary, summary)
    write_atomically(out / "stability.md", lambda path: path.write_text(text, encoding="utf-8"))
    return StabilityResult(boundary, runs, summary, out / "stability.md", figures)


def image_tokens(images: torch.Tensor, seed: int, count: int = 500, patch: int = 4) -> torch.Tensor:
    """Tokens for the phase boundary: `count` patches of images, (count, 3 patch^2) float64, as the boundary needs no encoder."""
    draw = torch.Generator().manual_seed(seed)
    patches = torch.nn.functional.unfold(images.double() / 255, patch, stride=patch).movedim(1, -1).reshape(-1, 3 * patch * patch)
    return patches[torch.randperm(len(patches), generator=draw)[:count]]


def summarise(runs: list[CoupledRun]) -> pd.DataFrame:
    """One row per system, optimizer and epsilon: means over seeds."""
    rows = [
        {
            "system": r.system,
            "optimizer": r.optimizer,
            "epsilon": r.epsilon,
            "collapsed": float(r.collapsed),
            "smallest margin": float(r.trace["margin"].min()),
            "last margin": float(r.trace["margin"].iloc[-1]),
            "separation, nearest": float(r.trace["separation_nearest"].iloc[-1]),
            "codes used": r.utilization,
            "PSNR of ids": r.psnr,
        }
        for r in runs
    ]
    table = pd.DataFrame(rows).groupby(["system", "optimizer", "epsilon"], sort=False).mean().reset_index()
    return table.rename(columns={"collapsed": "share collapsed"})


def traces(runs: list[CoupledRun]) -> pd.DataFrame:
    """All logged rows of all runs, long form."""
    parts = [r.trace.assign(system=r.system, optimizer=r.optimizer, epsilon=r.epsilon, run=i) for i, r in enumerate(runs)]
    return pd.concat(parts, ignore_index=True)


def to_markdown(boundary: PhaseBoundary, summary: pd.DataFrame) -> str:
    """Both tables as Markdown."""
    lines = ["| objective | predicted boundary T / λ_max | found |", "|---|---:|---:|"]
    lines += [f"| {name} | {a:.0f} | {boundary.found[name]:.3f} |" for name, a in PREDICTED.items()]
    lines += ["", "| " + " | ".join(summary.columns) + " |", "|---|---|" + "---:|" * (len(summary.columns) - 2)]
    for row in summary.itertuples(index=False):
        lines.append("| " + " | ".join(value if isinstance(value, str) else _number(value) for value in row) + " |")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3g}"


@styled
def boundary_figure(boundary: PhaseBoundary) -> Figure:
    """Growth rate over T / lambda_max: predicted lines, measured points."""
    figure, (axis,) = panels(1)
    figure.set_size_inches(5.2, 3.6)
    handles = []
    for (name, rates), tint in zip(boundary.rates.groupby("objective", sort=False), ("#0072B2", "#D55E00"), strict=True):
        axis.plot(rates["T / lambda_max"], rates["predicted"], color=tint, linewidth=1.2)
        axis.plot(rates["T / lambda_max"], rates["measured"], "o", color=tint)
        axis.axvline(PREDICTED[str(name)], color=tint, linewidth=0.8, linestyle=":")
        label = f"{name}: predicted {PREDICTED[str(name)]:.0f}, found {boundary.found[str(name)]:.2f}"
        handles.append(Line2D([], [], color=tint, marker="o", label=label))
    axis.axhline(0, color="black", linewidth=0.6)
    axis.set_xlabel("T / λ_max(Cov z)")
    axis.set_ylabel("Growth rate of a small spread (2/K)")
    axis.set_ylim(-1.1, 4)
    legend_below(figure, handles, columns=2)
    return figure


@styled
def traces_figure(runs: list[CoupledRun], seeds: int) -> Figure:
    """Margin and separation over the steps, a column per optimizer, a colour per epsilon; thin lines are single seeds."""
    figure, axes = panels(2 * len(OPTIMIZERS))
    for column, optimizer in enumerate(OPTIMIZERS):
        for row, (name, label) in enumerate((("margin", "Margin T_c / T"), ("separation_nearest", "Separation of neighbours"))):
            axis = axes[row * len(OPTIMIZERS) + column]
            for epsilon, tint in zip(EPSILONS, SHADES, strict=True):
                for r in (r for r in runs if r.optimizer == optimizer and r.epsilon == epsilon):
                    # What has collapsed is at the foot of a logarithmic axis, not off it.
                    draw(axis, r.trace["step"], r.trace[name].clip(lower=1e-3), color=tint, linewidth=1.6 if seeds == 1 else 0.9)
            if name == "margin":
                axis.axhline(1, color=REFERENCE, linewidth=0.8, zorder=0)
                axis.set_title(optimizer, fontsize=9)
            axis.set_ylabel(label)
            axis.set_xlabel("Optimizer step")
            log_axis(axis)
    handles = [Line2D([], [], color=tint, label=f"ε = {epsilon:g}") for epsilon, tint in zip(EPSILONS, SHADES, strict=True)]
    legend_below(figure, [*handles, Line2D([], [], color=REFERENCE, linewidth=0.8, label="margin 1: collapse below")], columns=3)
    return figure

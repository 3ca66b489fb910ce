"""`vqlab reproduce stability`: the phase boundary of collapse, and the two time scales of encoder and prototypes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from vqlab.data import load_images
from vqlab.experiments.phase_boundary import PREDICTED, PhaseBoundary, measure_phase_boundary
from vqlab.experiments.report import Claim, Report, Settings, Verdict
from vqlab.experiments.time_scales import CODEBOOK_SIZE, EPSILONS, OPTIMIZERS, SYSTEMS, CoupledRun, train_coupled
from vqlab.results.style import REFERENCE, draw, legend_below, log_axis, panels, save, styled
from vqlab.storage import write_atomically

RATIOS = [0.5, 1.0, 1.5, 1.9, 2.1, 2.5, 3.0, 3.5, 3.9, 4.1, 4.5, 5.0, 6.0]
SHADES = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00")  # from the smallest epsilon to the largest
STEPS, QUICK_STEPS = 120, 20
#: How far the boundary that is found may lie from the predicted one, as a share of it.
TOLERANCE = 0.02


def run(settings: Settings) -> Report:
    """Measure the boundary on patches of images, train both systems at every epsilon; tables, pictures and what they say of the claims."""
    data = load_images("sample")
    train, test = (split.plain(torch.arange(len(split))) for split in (data.train, data.test))
    steps = QUICK_STEPS if settings.quick else STEPS
    boundary = measure_phase_boundary(image_tokens(train, 0), RATIOS)
    runs = [
        train_coupled(system, optimizer, epsilon, train, test, steps=steps, seed=seed)
        for system in SYSTEMS
        for optimizer in OPTIMIZERS
        for epsilon in EPSILONS
        for seed in range(settings.seeds)
    ]
    report = Report("stability", "when prototypes merge: temperature, and the learning rates of encoder and prototypes")
    report.notes.append(f"boundary: 8 prototypes a hundred-thousandth apart, gradient flow on 500 patches of images of {data.name}")
    report.notes.append(
        f"trainings: {data.name}, K = {CODEBOOK_SIZE}, {steps} steps of 32 images, {settings.seeds} seeds; absolute: tokens as the encoder "
        "gives them, T constant; relative: tokens normalised, T in units of their variance; epsilon: encoder rate over prototypes"
    )
    report.notes.append("collapsed: prototypes end within a hundredth of the tokens' scale of their nearest, or the loss diverges")
    report.tables["Phase boundary"] = pd.DataFrame(
        [
            {"objective": name, "boundary T / lambda_max, predicted": a, "found": f"{boundary.found[name]:.3f}"}
            for name, a in PREDICTED.items()
        ]
    )
    report.tables["Growth rates"] = boundary.rates
    report.tables["Two time scales"] = summarise(runs)
    folder = settings.out / "stability"
    report.figures.append(save(boundary_figure(boundary), folder / "phase-boundary.png"))
    for system in SYSTEMS:
        own = [r for r in runs if r.system == system]
        report.figures.append(save(traces_figure(own, settings.seeds), folder / f"time-scales-{system}.png"))
    history = traces(runs).to_csv(index=False)
    write_atomically(folder / "traces.csv", lambda path: path.write_text(history, encoding="utf-8"))
    report.claims += [*boundary_claims(boundary), time_scale_claim(runs)]
    return report


def boundary_claims(boundary: PhaseBoundary) -> list[Claim]:
    """One claim per objective: is its boundary where it is predicted."""
    notes = {"L_q": "full gradient", "F": "free energy: gradient with q held constant"}
    return [
        Claim(
            f"collapse repels if T < {a:.0f} lambda_max(Cov z), for {name}",
            f"{a:.0f}",
            f"{boundary.found[name]:.3f} (rates measured at {len(RATIOS)} ratios, largest error {_largest_error(boundary, name):.1g})",
            "agrees" if abs(boundary.found[name] - a) <= TOLERANCE * a else "disagrees",
            notes[name],
        )
        for name, a in PREDICTED.items()
    ]


def _largest_error(boundary: PhaseBoundary, name: str) -> float:
    own = boundary.rates[boundary.rates["objective"] == name]
    return float((own["measured"] - own["predicted"]).abs().max())


def time_scale_claim(runs: list[CoupledRun]) -> Claim:
    """epsilon <= 0.1 stable and 1.0 not: judged by the system that the condition is stated for, whose temperature is constant."""
    slow = [r for r in runs if r.system == "absolute" and r.epsilon <= 0.1]
    equal = [r for r in runs if r.system == "absolute" and r.epsilon == 1.0]
    steady, unstable = not any(r.collapsed for r in slow), all(r.collapsed for r in equal)
    verdict: Verdict = "agrees" if steady and unstable else "partly" if steady or unstable else "disagrees"
    margins = ", ".join(
        f"{optimizer} {np.mean([r.trace['margin'].iloc[-1] for r in equal if r.optimizer == optimizer]):.2g}" for optimizer in OPTIMIZERS
    )
    relative = [r for r in runs if r.system == "relative"]
    return Claim(
        "two time scales: epsilon <= 0.1 stable, 1.0 not",
        "stable for epsilon <= 0.1, not for 1.0",
        f"collapsed with constant T: {_share(slow)} at epsilon <= 0.1, {_share(equal)} at 1.0",
        verdict,
        f"margin at epsilon = 1 at the end: {margins}; with tokens normalised and T relative: {_share(relative)} over all epsilon",
    )


def _share(runs: list[CoupledRun]) -> str:
    """How many collapsed, and the exact 95 % interval of the share."""
    from scipy.stats import binomtest

    count = sum(r.collapsed for r in runs)
    bounds = binomtest(count, len(runs)).proportion_ci()
    return f"{count} of {len(runs)} [{bounds.low:.2f}, {bounds.high:.2f}]"


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

"""What a sweep found: a table with mean and confidence interval over seeds, and three figures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from vqlab.errors import VqlabError
from vqlab.results import Run
from vqlab.results.style import save
from vqlab.storage import write_atomically
from vqlab.sweep.execute import SweepOutcome
from vqlab.sweep.figures import gap_figure, rate_figure, usage_figure
from vqlab.sweep.plan import Sweep

SEED = "seed"
#: Columns of the table: heading, and how many digits to show.
FIGURES = {
    "bits_per_image": ("bits/image", 0),
    "test/hard/psnr": ("PSNR hard (dB)", 2),
    "test/soft/psnr": ("PSNR soft (dB)", 2),
    "test/gap": ("gap (dB)", 2),
    "test/hard/ssim": ("SSIM hard", 4),
    "utilization": ("codes used (%)", 1),
    "perplexity": ("perplexity", 1),
}


class Interval(NamedTuple):
    """Mean of `n` values and the half width of its 95 % confidence interval; NaN where one value, or none, has no interval."""

    mean: float
    half: float
    n: int


def confidence_interval(values: list[float], level: float = 0.95) -> Interval:
    """Student's interval for the mean; NaN among the values is left out."""
    finite = np.asarray([value for value in values if math.isfinite(value)], dtype=np.float64)
    n = len(finite)
    if n < 2:
        return Interval(float(finite.mean()) if n else math.nan, math.nan, n)
    half = stats.t.ppf((1 + level) / 2, n - 1) * finite.std(ddof=1) / math.sqrt(n)
    return Interval(float(finite.mean()), float(half), n)


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed. point: their common place in the sweep, without the seed."""

    label: str
    point: dict[str, Any]
    runs: list[Run]

    def interval(self, figure: str) -> Interval:
        return confidence_interval([run_figures(run)[figure] for run in self.runs])


class SweepReport(NamedTuple):
    """Files that a report wrote."""

    markdown: Path
    csv: Path
    figures: list[Path]


def report_sweep(sweep: Sweep, outcome: SweepOutcome, out: str | Path) -> SweepReport:
    """Write sweep.md, sweep.csv (one row per run) and the figures into `out`. VqlabError where no run is complete."""
    if not outcome.folders:
        raise VqlabError(f"no run of the sweep {sweep.name} is complete")
    folder = Path(out)
    points = {run.name: run.point for run in sweep.runs if run.name in outcome.folders}
    runs = {name: Run.load(outcome.folders[name]) for name in points}
    groups = group_runs(points, runs)
    rows = pd.DataFrame([{"run": name, **points[name], **run_figures(run)} for name, run in runs.items()])
    csv, markdown = folder / "sweep.csv", folder / "sweep.md"
    write_atomically(csv, lambda path: rows.to_csv(path, index=False))
    text = to_markdown(groups) + "".join(f"\nfailed: {name}: {reason}\n" for name, reason in outcome.failures.items())
    write_atomically(markdown, lambda path: path.write_text(text, encoding="utf-8"))
    drawn = {"psnr-over-rate": rate_figure(groups), "usage-over-epochs": usage_figure(groups), "gap-over-temperature": gap_figure(groups)}
    return SweepReport(markdown, csv, [save(figure, folder / f"{name}.png") for name, figure in drawn.items() if figure is not None])


def group_runs(points: dict[str, dict[str, Any]], runs: dict[str, Run]) -> list[Group]:
    """Runs by their point without the seed, in the sweep's order."""
    groups: dict[str, Group] = {}
    for name, run in runs.items():
        point = {key: value for key, value in points[name].items() if key != SEED}
        label = ", ".join(f"{value}" if key == "quantizer" else f"{_short(key)} {value}" for key, value in point.items()) or "all"
        groups.setdefault(label, Group(label, point, [])).runs.append(run)
    return list(groups.values())


def _short(key: str) -> str:
    return "K =" if key == "codebook_size" else key


def run_figures(run: Run) -> dict[str, float]:
    """The figures of one run's last epoch on the test split; of a stack's levels the worst used counts, and the last one's perplexity."""
    last = run.summary["test"]
    levels = range(1, run.levels + 1)
    used = [last[f"test/level{level}/utilization"] for level in levels]
    figures = {name: last.get(name) for name in FIGURES if name.startswith("test/")}
    figures["bits_per_image"] = run.summary["bits_per_image"]
    figures["utilization"] = 100 * min(used) if used else None
    figures["perplexity"] = last[f"test/level{run.levels}/perplexity"] if used else None
    return {name: math.nan if figures[name] is None else float(figures[name]) for name in FIGURES}


def to_markdown(groups: list[Group]) -> str:
    """One row per group: mean ± half width of the 95 % interval over its seeds."""
    axes = list(dict.fromkeys(key for group in groups for key in group.point))
    headings = [*axes, "runs", *(heading for heading, _ in FIGURES.values())]
    lines = ["| " + " | ".join(headings) + " |", "|" + "|".join("---" if name in axes else "---:" for name in headings) + "|"]
    for group in groups:
        cells = [str(group.point.get(axis, "–")) for axis in axes] + [str(len(group.runs))]
        cells += [_cell(group.interval(name), digits) for name, (_, digits) in FIGURES.items()]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n\n± is the half width of the 95 % confidence interval of the mean over seeds (Student).\n"


def _cell(interval: Interval, digits: int) -> str:
    if not math.isfinite(interval.mean):
        return "–"
    mean = f"{interval.mean:,.{digits}f}"
    return mean if not interval.half > 0 else f"{mean} ± {interval.half:.{digits}f}"

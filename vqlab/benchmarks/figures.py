"""Log-log plots of the growth of time and memory with the number of codes."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from vqlab.benchmarks.candidates import CANDIDATES
from vqlab.benchmarks.quantizers import QuantizerBenchmark
from vqlab.results.style import MARKERS, STYLE

PANELS = (("train_ms", "training step (ms)"), ("ids_ms", "ids only (ms)"), ("train_mib", "memory above the inputs (MiB)"))


def plot_growth(result: QuantizerBenchmark, path: Path) -> Path:
    """Training time, inference time and training memory over K, a row for each (N, d), a line for each candidate; written as PNG."""
    shapes = sorted({(r.n, r.d) for r in result.rows})
    exponents = {g.candidate: g for g in result.growth}
    with plt.rc_context(STYLE):
        figure, grid = plt.subplots(
            len(shapes), len(PANELS), figsize=(3.6 * len(PANELS), 2.9 * len(shapes)), squeeze=False, layout="constrained"
        )
        for (n, d), axes in zip(shapes, grid, strict=True):
            for (field, label), ax in zip(PANELS, axes, strict=True):
                _lines(ax, result, n, d, field)
                ax.set(xscale="log", yscale="log", xlabel="codes K", ylabel=label, title=f"N = {n}, d = {d}")
                ax.set_xscale("log", base=2)
        names = [name for name in CANDIDATES if name in exponents]
        labels = [_label(name, exponents[name].time_k) for name in names]
        handles = [plt.Line2D([], [], color=f"C{i}", marker=MARKERS[i]) for i, name in enumerate(CANDIDATES) if name in names]
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
        plt.close(figure)
    return path


def _lines(ax: Axes, result: QuantizerBenchmark, n: int, d: int, field: str) -> None:
    for i, name in enumerate(CANDIDATES):
        points = [(r.k, getattr(r, field)) for r in result.rows if (r.candidate, r.n, r.d) == (name, n, d)]
        points = sorted((k, value) for k, value in points if value)
        if points:
            ax.plot(*zip(*points, strict=True), color=f"C{i}", marker=MARKERS[i])


def _label(name: str, exponent: float | None) -> str:
    return CANDIDATES[name].title + (f", time ~ K^{exponent:.2f}" if exponent is not None else "")

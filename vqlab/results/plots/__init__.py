"""Figures of one run: a function for each that builds it, and one that writes them all."""

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from vqlab.results.plots.counts import counts_figure
from vqlab.results.plots.levels import levels_figure
from vqlab.results.plots.prefixes import prefixes_figure
from vqlab.results.plots.reconstructions import reconstructions_figure
from vqlab.results.plots.training import training_figure
from vqlab.results.plots.usage import usage_figure
from vqlab.results.run import Run
from vqlab.results.style import save

FIGURES: dict[str, Callable[[Run], Figure | None]] = {
    "usage": usage_figure,
    "levels": levels_figure,
    "training": training_figure,
    "counts": counts_figure,
    "reconstructions": reconstructions_figure,
    "prefixes": prefixes_figure,
}

__all__ = [
    "FIGURES",
    "counts_figure",
    "levels_figure",
    "plot_run",
    "prefixes_figure",
    "reconstructions_figure",
    "training_figure",
    "usage_figure",
]


def plot_run(path: str | Path) -> list[Path]:
    """Write every figure that a run folder has the data for to its `plots/NAME.png`; returns the files written.

    VqlabError where a file of the run is missing or broken.
    """
    run = Run.load(path)
    figures = ((name, build(run)) for name, build in FIGURES.items())
    return [save(figure, run.path / "plots" / f"{name}.png") for name, figure in figures if figure is not None]

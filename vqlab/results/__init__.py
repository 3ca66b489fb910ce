"""Figures and tables, made from what a run leaves in its folder."""

from vqlab.results.card import model_card, release
from vqlab.results.compare import ComparisonPaths, compare_runs
from vqlab.results.plots import plot_run
from vqlab.results.run import Run

__all__ = ["ComparisonPaths", "Run", "compare_runs", "model_card", "plot_run", "release"]

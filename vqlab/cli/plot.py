"""`vqlab plot` and `vqlab compare`: pictures and tables from run folders."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from vqlab.cli.command import Command
from vqlab.results import compare_runs, plot_run


def add_plot_arguments(parser: ArgumentParser) -> None:
    """Options of `vqlab plot`."""
    parser.add_argument("runs", type=Path, nargs="+", help="run folders")


def run_plot(options: Namespace) -> None:
    """Draw the plots of every run and print their paths."""
    for run in options.runs:
        for path in plot_run(run):
            print(path)


def add_compare_arguments(parser: ArgumentParser) -> None:
    """Options of `vqlab compare`."""
    parser.add_argument("runs", type=Path, nargs="+", help="run folders")
    parser.add_argument("--out", type=Path, default=Path("comparison"), help="folder for the figure and the tables")


def run_compare(options: Namespace) -> None:
    """Write the comparison and print its table."""
    paths = compare_runs(options.runs, options.out)
    print(paths.markdown.read_text(encoding="utf-8"))
    print(f"{paths.figure}\n{paths.markdown}\n{paths.csv}")


PLOT = Command(
    "plot",
    help="draw the plots of a run",
    description="Draw the plots of runs into RUN/plots.",
    usage="RUN...",
    add_arguments=add_plot_arguments,
    run=run_plot,
)
COMPARE = Command(
    "compare",
    help="compare runs",
    description="One figure and one table of several runs.",
    usage="RUN RUN... [--out FOLDER]",
    add_arguments=add_compare_arguments,
    run=run_compare,
)

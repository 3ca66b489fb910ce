"""`vqlab plot`, `vqlab compare` and `vqlab report`: pictures, tables and pages from run folders."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
from jsonargparse import ArgumentParser, Namespace

from vqlab.cli.command import Command
from vqlab.results import compare_runs, plot_run
from vqlab.results.report import write_report
from vqlab.training.runtime import tune_process


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
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_compare(options: Namespace) -> None:
    """Write the comparison and print its table."""
    paths = compare_runs(options.runs, options.out)
    if options.json:
        rows = json.loads(pd.read_csv(paths.csv).to_json(orient="records", double_precision=15))
        print(json.dumps({"runs": rows, "files": {name: str(path) for name, path in paths._asdict().items()}}, indent=2))
        return
    print(paths.markdown.read_text(encoding="utf-8"))
    print(f"{paths.figure}\n{paths.markdown}\n{paths.csv}")


def add_report_arguments(parser: ArgumentParser) -> None:
    """Options of `vqlab report`."""
    parser.add_argument("runs", type=Path, nargs="+", help="run folders")
    parser.add_argument("--out", type=Path, default=Path("report.html"), help="the page")
    parser.add_argument("--data_root", type=Path, default=Path("data"), help="folder that holds the data sets")
    parser.add_argument("--images", type=int, default=1000, help="test images whose tokens fill the codebook atlas")


def run_report(options: Namespace) -> None:
    """Write the page and print its path."""
    tune_process()
    print(write_report(options.runs, options.out, options.data_root, options.images))


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
REPORT = Command(
    "report",
    help="write a page about runs",
    description="One HTML page about runs, with curves, reconstructions and codebooks to look at; it needs no network.",
    usage="RUN... [--option VALUE ...]",
    add_arguments=add_report_arguments,
    run=run_report,
)

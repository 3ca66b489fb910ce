"""`vqlab sweep`: many runs from one file, ending in a table and figures."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from vqlab.cli.command import Command
from vqlab.quantizers import NonFiniteError
from vqlab.sweep import load_sweep, report_sweep, run_sweep


def add_sweep_arguments(parser: ArgumentParser) -> None:
    """Options of `vqlab sweep`."""
    parser.add_argument("file", type=Path, help="YAML file: base, settings, axes (see configs/sweeps)")
    parser.add_argument("--out", type=Path | None, default=None, help="folder of runs, table and figures; default: sweeps/FILE's name")
    parser.add_argument("--data_root", type=str | None, default=None, help="folder that holds the data sets")
    parser.add_argument("--threads", type=int | None, default=None, help="CPU threads, 0 for all cores")
    parser.add_argument("--list", action="store_true", help="print the runs and stop")


def run_sweep_command(options: Namespace) -> None:
    """Train what is missing, then print the table and where everything is."""
    out = options.out or Path("sweeps") / options.file.stem
    given: dict[str, Any] = {"run.data_root": options.data_root, "run.threads": options.threads}
    sweep = load_sweep(options.file, out / "runs", {key: value for key, value in given.items() if value is not None})
    if options.list:
        print("\n".join(run.name for run in sweep.runs))
        return
    try:
        outcome = run_sweep(sweep, command=shlex.join(["vqlab", *sys.argv[1:]]), tell=lambda text: print(text, flush=True))
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; the same command goes on") from None
    report = report_sweep(sweep, outcome, out)
    print(f"\n{report.markdown.read_text(encoding='utf-8')}")
    print("\n".join(map(str, (report.markdown, report.csv, *report.figures))))
    if outcome.failures:
        raise NonFiniteError(f"{len(outcome.failures)} of {len(sweep.runs)} runs failed: {', '.join(outcome.failures)}")


SWEEP = Command(
    "sweep",
    help="train many runs and sum them up",
    description="Train every combination of a file's axes; finished runs are skipped, interrupted ones go on. Ends in a table and figures.",
    usage="FILE [--out FOLDER] [--list]",
    add_arguments=add_sweep_arguments,
    run=run_sweep_command,
)

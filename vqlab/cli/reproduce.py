"""`vqlab reproduce`: the paper's experiments, each one command."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from vqlab.cli.command import Command
from vqlab.experiments import stability
from vqlab.training.runtime import tune_process

#: Name -> function of (out, quick, seed) that writes its results into `out` and returns them.
EXPERIMENTS = {"stability": stability.run}


def add_reproduce_arguments(parser: ArgumentParser) -> None:
    """Options of `vqlab reproduce`."""
    parser.add_argument("name", choices=list(EXPERIMENTS), help="stability: phase boundary of collapse, two time scales")
    parser.add_argument("--quick", action="store_true", help="few steps and one seed: a minute in place of many")
    parser.add_argument("--out", type=Path, default=Path("reproduction"), help="folder for tables and pictures")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads, 0 for all cores")


def run_reproduce(options: Namespace) -> None:
    """Run it, print its tables and tell where everything lies."""
    tune_process(options.threads)
    result = EXPERIMENTS[options.name](options.out / options.name, options.quick, options.seed)
    print(result.markdown.read_text(encoding="utf-8"))
    print("\n".join(map(str, (result.markdown, *result.figures))))


REPRODUCE = Command(
    "reproduce",
    help="run the paper's experiments",
    description="Run an experiment of the paper and write tables and pictures.",
    usage="NAME [--quick] [--option VALUE ...]",
    add_arguments=add_reproduce_arguments,
    run=run_reproduce,
)

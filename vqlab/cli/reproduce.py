"""`vqlab reproduce`: the paper's experiments, each one command."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from vqlab.cli.command import Command
from vqlab.experiments import EXPERIMENTS, Settings, reproduce
from vqlab.training.runtime import tune_process


def add_reproduce_arguments(parser: ArgumentParser) -> None:
    """Options of `vqlab reproduce`."""
    parser.add_argument("name", choices=["all", *EXPERIMENTS], help="; ".join(f"{e.name}: {e.help}" for e in EXPERIMENTS.values()))
    parser.add_argument("--quick", action="store_true", help="small data and few steps: minutes in place of hours")
    parser.add_argument("--data", type=Path | None, default=None, help="file or folder of data sets; else VQLAB_DATA, else public")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--out", type=Path, default=Path("reproduction"), help="folder for tables and pictures")
    parser.add_argument("--encoder", type=str, default="auto", help="auto, minilm, a name on the Hugging Face hub, or a folder")
    parser.add_argument("--cache", type=Path, default=Path("cache"), help="folder for hidden states, computed once")
    parser.add_argument("--data_root", type=Path, default=Path("data"), help="folder that holds CIFAR-10")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads, 0 for all cores")


def run_reproduce(options: Namespace) -> None:
    """Run, print each report, and tell where everything lies."""
    tune_process(options.threads)
    fields = ("out", "quick", "seeds", "data", "encoder", "cache", "data_root")
    settings = Settings(**{name: options[name] for name in fields})
    for outcome in reproduce(options.name, settings):
        if outcome.report is not None:
            print(outcome.report.markdown())
        print(f"{outcome.name}: {outcome.skipped or settings.out / outcome.name / 'report.md'} ({outcome.seconds:.0f} s)")


REPRODUCE = Command(
    "reproduce",
    help="run the paper's experiments",
    description="Run an experiment of the paper, or all of them, and write tables and pictures.",
    usage="NAME [--option VALUE ...]",
    add_arguments=add_reproduce_arguments,
    run=run_reproduce,
)

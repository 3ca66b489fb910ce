"""The `vqlab` command: one sub-command each for training, plotting, evaluating and comparing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from vqlab import __version__
from vqlab.cli.evaluate import add_evaluate_arguments, run_evaluate
from vqlab.cli.train import DESCRIPTION, add_train_arguments, run_train
from vqlab.errors import VqlabError
from vqlab.quantizers import NonFiniteError
from vqlab.results import compare_runs, plot_run


def train_parser(prog: str | None = None) -> ArgumentParser:
    """Parser of a training run's options."""
    parser = ArgumentParser(
        prog=prog,
        description=DESCRIPTION,
        formatter_class=argparse.HelpFormatter,
        exit_on_error=False,
        default_env=False,
    )
    add_train_arguments(parser)
    return parser


def build_parser() -> ArgumentParser:
    """Parser of the whole `vqlab` command."""
    parser = ArgumentParser(prog="vqlab", description="Train, compare and use image tokenizers.", exit_on_error=False)
    parser.add_argument("--version", action="version", version=f"vqlab {__version__}")
    commands = parser.add_subcommands(dest="command")
    commands.add_subcommand("train", train_parser(), help="train a tokenizer")

    evaluate = ArgumentParser(description="Figures of a tokenizer on a data set's test split.")
    add_evaluate_arguments(evaluate)
    commands.add_subcommand("evaluate", evaluate, help="measure a tokenizer")

    plot = ArgumentParser(description="Draw the plots of runs into RUN/plots.")
    plot.add_argument("runs", type=Path, nargs="+", help="run folders")
    commands.add_subcommand("plot", plot, help="draw the plots of a run")

    compare = ArgumentParser(description="One figure and one table of several runs.")
    compare.add_argument("runs", type=Path, nargs="+", help="run folders")
    compare.add_argument("--out", type=Path, default=Path("comparison"), help="folder for the figure and the tables")
    commands.add_subcommand("compare", compare, help="compare runs")
    return parser


def _run(options: Namespace, parser: ArgumentParser) -> None:
    chosen = options[options.command]
    if options.command == "train":
        run_train(chosen, train_parser().get_defaults())
    elif options.command == "evaluate":
        run_evaluate(chosen)
    elif options.command == "plot":
        for run in chosen.runs:
            for path in plot_run(run):
                print(path)
    else:
        paths = compare_runs(chosen.runs, chosen.out)
        print(paths.markdown.read_text(encoding="utf-8"))
        print(f"{paths.figure}\n{paths.markdown}\n{paths.csv}")


def guarded(action: object, *args: object) -> int:
    """Run `action(*args)`; a user's mistake becomes one line on stderr and exit code 2, a failed computation exit code 1."""
    assert callable(action)
    try:
        action(*args)
        return 0
    except (VqlabError, argparse.ArgumentError) as error:
        message = str(error).strip()
        print(f"error: {message}", file=sys.stderr)
        return 2
    except NonFiniteError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def main(argv: Sequence[str] | None = None) -> int:
    """Entry of the console script."""

    def action() -> None:
        parser = build_parser()
        _run(parser.parse_args(argv), parser)

    return guarded(action)


def train_main(argv: Sequence[str] | None = None) -> int:
    """Entry of `train.py`."""

    def action() -> None:
        parser = train_parser("train.py")
        run_train(parser.parse_args(argv), parser.get_defaults())

    return guarded(action)

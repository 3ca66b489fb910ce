"""The `vqlab` command: one sub-command each for training, plotting, evaluating and comparing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from vqlab import __version__
from vqlab.cli.bench import add_bench_arguments, run_bench
from vqlab.cli.evaluate import add_evaluate_arguments, add_release_arguments, run_evaluate, run_release
from vqlab.cli.formatting import CompactHelp
from vqlab.cli.train import DESCRIPTION, add_train_arguments, run_train
from vqlab.errors import VqlabError
from vqlab.quantizers import NonFiniteError
from vqlab.results import compare_runs, plot_run


def new_parser(description: str, usage: str, prog: str | None = None) -> ArgumentParser:
    """A parser in the help style of all commands, whose errors are exceptions."""
    return ArgumentParser(prog=prog, usage=usage, description=description, formatter_class=CompactHelp, exit_on_error=False)


def train_parser(prog: str) -> ArgumentParser:
    """Parser of a training run's options."""
    parser = new_parser(DESCRIPTION, f"{prog} [--option VALUE ...]", prog)
    add_train_arguments(parser)
    return parser


def build_parser() -> ArgumentParser:
    """Parser of the whole `vqlab` command."""
    parser = new_parser("Train, compare and use image tokenizers.", "vqlab COMMAND ...", "vqlab")
    parser.add_argument("--version", action="version", version=f"vqlab {__version__}")
    commands = parser.add_subcommands(dest="command")
    commands.add_subcommand("train", train_parser("vqlab train"), help="train a tokenizer")

    evaluate = new_parser("Figures of a tokenizer on a data set's test split.", "vqlab evaluate TOKENIZER [--option VALUE ...]")
    add_evaluate_arguments(evaluate)
    commands.add_subcommand("evaluate", evaluate, help="measure a tokenizer")

    release = new_parser("Copy a run's tokenizer out, with a card of measured figures.", "vqlab release RUN FOLDER [--option VALUE ...]")
    add_release_arguments(release)
    commands.add_subcommand("release", release, help="release a run's tokenizer with its card")

    plot = new_parser("Draw the plots of runs into RUN/plots.", "vqlab plot RUN...")
    plot.add_argument("runs", type=Path, nargs="+", help="run folders")
    commands.add_subcommand("plot", plot, help="draw the plots of a run")

    compare = new_parser("One figure and one table of several runs.", "vqlab compare RUN RUN... [--out FOLDER]")
    compare.add_argument("runs", type=Path, nargs="+", help="run folders")
    compare.add_argument("--out", type=Path, default=Path("comparison"), help="folder for the figure and the tables")
    commands.add_subcommand("compare", compare, help="compare runs")

    bench = new_parser("Measure speed, everything side by side in one run.", "vqlab bench train [--option VALUE ...]")
    add_bench_arguments(bench)
    commands.add_subcommand("bench", bench, help="measure speed")
    return parser


def _run(options: Namespace, given: Namespace) -> None:
    chosen = options[options.command]
    if options.command == "train":
        run_train(chosen, given[options.command], train_parser("vqlab train").get_defaults())
    elif options.command == "evaluate":
        run_evaluate(chosen)
    elif options.command == "release":
        run_release(chosen)
    elif options.command == "bench":
        run_bench(chosen)
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
    except argparse.ArgumentError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)  # the parser explains itself over many lines
        return 2
    except VqlabError as error:
        print(f"error: {str(error).strip()}", file=sys.stderr)
        return 2
    except NonFiniteError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        print(str(error) or "interrupted", file=sys.stderr)
        return 130


def main(argv: Sequence[str] | None = None) -> int:
    """Entry of the console script."""

    def action() -> None:
        parser = build_parser()
        _run(parser.parse_args(argv), parser.parse_args(argv, defaults=False))

    return guarded(action)


def train_main(argv: Sequence[str] | None = None) -> int:
    """Entry of `train.py`."""

    def action() -> None:
        parser = train_parser("train.py")
        run_train(parser.parse_args(argv), parser.parse_args(argv, defaults=False), parser.get_defaults())

    return guarded(action)

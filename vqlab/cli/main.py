"""The `vqlab` command and `train.py`: which sub-commands there are, and what a failure prints."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from jsonargparse import ArgumentParser, Namespace

from vqlab import __version__
from vqlab.cli.bench import BENCH
from vqlab.cli.command import command_parser, new_parser
from vqlab.cli.decode import DECODE
from vqlab.cli.encode import ENCODE
from vqlab.cli.evaluate import EVALUATE
from vqlab.cli.export import EXPORT
from vqlab.cli.info import INFO
from vqlab.cli.plot import COMPARE, PLOT, REPORT
from vqlab.cli.prior import PRIOR
from vqlab.cli.probe import PROBE
from vqlab.cli.release import RELEASE
from vqlab.cli.reproduce import REPRODUCE
from vqlab.cli.sample import SAMPLE
from vqlab.cli.sweep import SWEEP
from vqlab.cli.train import DESCRIPTION, TrainHelp, add_train_arguments, run_train
from vqlab.errors import VqlabError
from vqlab.quantizers import NonFiniteError

#: Every sub-command but `train`, which shares its options with `train.py`, in the order of the help.
COMMANDS = (EVALUATE, ENCODE, DECODE, INFO, RELEASE, EXPORT, PLOT, COMPARE, REPORT, SWEEP, PROBE, PRIOR, SAMPLE, REPRODUCE, BENCH)


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
    train = train_parser("vqlab train")
    commands.add_subcommand("train", train, help="train a tokenizer")
    train.formatter_class = TrainHelp  # the line before has set the parent's

    for command in COMMANDS:
        commands.add_subcommand(command.name, command_parser(command), help=command.help)
    return parser


def _run(options: Namespace, given: Namespace) -> int | None:
    chosen = options[options.command]
    if options.command == "train":
        run_train(chosen, given[options.command], train_parser("vqlab train").get_defaults())
        return None
    return next(command for command in COMMANDS if command.name == options.command).run(chosen)


def guarded(action: object, *args: object) -> int:
    """Run `action(*args)`, whose result is the exit code (None: 0).

    A user's mistake becomes one line on stderr and exit code 2, a failed computation exit code 1.
    """
    assert callable(action)
    try:
        return action(*args) or 0
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

    def action() -> int | None:
        parser = build_parser()
        return _run(parser.parse_args(argv), parser.parse_args(argv, defaults=False))

    return guarded(action)


def train_main(argv: Sequence[str] | None = None) -> int:
    """Entry of `train.py`."""

    def action() -> None:
        parser = train_parser("train.py")
        run_train(parser.parse_args(argv), parser.parse_args(argv, defaults=False), parser.get_defaults())

    return guarded(action)

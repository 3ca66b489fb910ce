"""`vqlab release`: a run's tokenizer with a card of measured figures."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from vqlab.cli.command import Command
from vqlab.cli.evaluate import evaluate
from vqlab.cli.shared import add_data_arguments, data_options
from vqlab.hub import push_folder
from vqlab.results import Run, release
from vqlab.training.runtime import tune_process


def add_release_arguments(parser: ArgumentParser) -> None:
    """Options of `vqlab release`."""
    parser.add_argument("run_folder", type=Path, help="run folder")
    parser.add_argument("out", type=Path, help="folder of the released tokenizer, for example checkpoints/NAME")
    add_data_arguments(parser)
    parser.add_argument(
        "--push_to_hub", type=str | None, default=None, help="also upload it to the Hugging Face hub under this name, USER/NAME"
    )


def run_release(options: Namespace) -> None:
    """Measure the run's tokenizer and write it with its card."""
    tune_process()
    run = Run.load(options.run_folder)
    figures = evaluate(options.run_folder / "tokenizer", batch_size=500, **data_options(options))
    print(release(run, options.out, figures, options.data))
    if options.push_to_hub is not None:
        print(push_folder(options.out, options.push_to_hub))


RELEASE = Command(
    "release",
    help="release a run's tokenizer with its card",
    description="Copy a run's tokenizer out, with a card of measured figures.",
    usage="RUN FOLDER [--option VALUE ...]",
    add_arguments=add_release_arguments,
    run=run_release,
)

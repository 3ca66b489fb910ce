"""`vqlab probe`: what a tokenizer's tokens tell about the class of an image."""

from __future__ import annotations

import json

from jsonargparse import ArgumentParser, Namespace

from vqlab.cli.command import Command
from vqlab.cli.shared import add_data_arguments, add_tokenizer_argument, load_data, load_tokenizer
from vqlab.downstream.features import FEATURES
from vqlab.downstream.probe import FLOORS, ProbeReport, probe
from vqlab.training.runtime import tune_process


def add_probe_arguments(parser: ArgumentParser) -> None:
    """Options of `vqlab probe`."""
    add_tokenizer_argument(parser)
    add_data_arguments(parser)
    parser.add_argument(
        "--features", type=str, nargs="+", default=[], help=f"default all that apply of {', '.join((*FLOORS, *FEATURES))}", metavar="NAME"
    )
    parser.add_argument("--train_images", type=int, default=None, help="use only so many training images, for a quick look")
    parser.add_argument("--neighbours", type=int, default=20, help="k of the nearest-neighbour classifier")
    parser.add_argument("--iterations", type=int, default=100, help="most steps of the linear classifier's optimizer")
    parser.add_argument("--batch_size", type=int, default=500, help="images per batch; the figures do not depend on it")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_probe(options: Namespace) -> None:
    """Print the table of accuracies, or JSON."""
    tune_process()
    tokenizer = load_tokenizer(options.tokenizer)
    report = probe(
        tokenizer,
        load_data(options),
        names=options.features,
        train_images=options.train_images,
        neighbours=options.neighbours,
        iterations=options.iterations,
        batch_size=options.batch_size,
    )
    print(json.dumps(report.to_dict(), indent=2) if options.json else table(report))


def table(report: ProbeReport) -> str:
    """The accuracies as text, one kind of vector a line."""
    head = f"{report.data}: {report.train_images:,} training and {report.test_images:,} test images, chance {1 / report.classes:.1%}"
    lines = [head, f"{'feature':18} {'dimensions':>10} {'linear':>8} {f'{report.neighbours}-NN':>8}"]
    lines += [f"{name:18} {r.dimensions:10d} {r.linear:8.1%} {r.knn:8.1%}" for name, r in report.features.items()]
    return "\n".join(lines)


PROBE = Command(
    "probe",
    help="classify images from their tokens",
    description="Accuracy of linear and nearest-neighbour classifiers on what a tokenizer gives for each image.",
    usage="TOKENIZER [--option VALUE ...]",
    add_arguments=add_probe_arguments,
    run=run_probe,
)

"""`vqlab sample`: images drawn from a prior."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from jsonargparse import ArgumentParser, Namespace

from vqlab.cli.command import Command
from vqlab.cli.shared import add_data_arguments, load_data
from vqlab.data import Split
from vqlab.errors import VqlabError
from vqlab.metrics.features import IMAGE_FEATURES, load_features
from vqlab.metrics.frechet import FrechetDistance
from vqlab.prior import Prior, sample_images
from vqlab.prior.storage import PriorFolder
from vqlab.progress import progress
from vqlab.results.plots.samples import samples_figure
from vqlab.results.style import save
from vqlab.tokenizer import Tokenizer
from vqlab.training.runtime import tune_process


def add_sample_arguments(parser: ArgumentParser) -> None:
    """Options of `vqlab sample`."""
    parser.add_argument("prior", type=Path, help="folder of a prior that `vqlab prior` trained")
    parser.add_argument("--out", type=Path, default=None, help="the picture; default PRIOR/samples.png")
    parser.add_argument("--per_row", type=int, default=8, help="images of a row; a class-conditional prior has one row a class")
    parser.add_argument("--rows", type=int, default=8, help="rows of an unconditional prior's picture")
    parser.add_argument("--temperature", type=float, default=1.0, help="divides the scores: below 1 likelier ids, 0 the likeliest")
    parser.add_argument("--top_k", type=int, default=0, help="draw from the k likeliest ids only, 0 for all")
    parser.add_argument("--seed", type=int, default=0, help="of the drawing")
    parser.add_argument(
        "--fd",
        type=str,
        default=None,
        help=f"also measure the Fréchet distance to the test images, with features of {', '.join(IMAGE_FEATURES)}",
    )
    parser.add_argument("--fd_images", type=int, default=2000, help="images to draw for it, compared with as many test images")
    add_data_arguments(parser)
    parser.add_argument("--threads", type=int, default=0, help="CPU threads, 0 for all cores")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_sample(options: Namespace) -> None:
    """Write the picture and print its path."""
    tune_process(options.threads)
    if options.per_row < 1 or options.rows < 1:
        raise VqlabError(f"per_row and rows must be at least 1, got {options.per_row} and {options.rows}")
    prior, tokenizer = PriorFolder(options.prior).load()
    rows = len(prior.classes) or options.rows
    settings = {"seed": options.seed, "temperature": options.temperature, "top_k": options.top_k}
    images, _ = sample_images(prior, tokenizer, rows * options.per_row, **settings)
    # The classes take turns: column by column.
    grid = images.unflatten(0, (options.per_row, rows)).transpose(0, 1)
    path = save(samples_figure(grid, prior.classes), options.out or options.prior / "samples.png")
    report: dict[str, Any] = {"picture": str(path), "images": len(images), **settings}
    if options.fd:
        test = load_data(options).test
        report |= sample_distance(prior, tokenizer, test, options.fd, options.fd_images, settings)
    if options.json:
        print(json.dumps(report, indent=2))
        return
    print(path)
    if options.fd:
        print(f"fd_{options.fd} {report[f'fd_{options.fd}']:.4g} ({options.fd_images} images)")


def sample_distance(
    prior: Prior, tokenizer: Tokenizer, test: Split, features: str, count: int, settings: dict[str, Any]
) -> dict[str, float]:
    """The distance, as fd_NAME, of `count` drawn images to the first `count` test images, and fd_images = count.

    VqlabError where there are fewer test images, or fewer than two images to draw.
    """
    if not 2 <= count <= len(test):
        raise VqlabError(f"fd_images must lie in 2..{len(test)}, got {count}")
    distance = FrechetDistance(load_features(features))
    drawn, _ = sample_images(prior, tokenizer, count, **settings)
    for images, real in ((test.plain(torch.arange(count)), True), (drawn, False)):
        for batch in progress(images.split(100), distance.name, total=-(-count // 100)):
            distance.update(batch, real=real)
    return {distance.name: distance.compute(), "fd_images": count}


SAMPLE = Command(
    "sample",
    help="draw images from a prior",
    description="Draw ids from a prior, decode them and write a picture of the images.",
    usage="PRIOR [--option VALUE ...]",
    add_arguments=add_sample_arguments,
    run=run_sample,
)

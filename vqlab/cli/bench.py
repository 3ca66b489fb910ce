"""`vqlab bench`: measurements of speed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from jsonargparse import ArgumentParser, Namespace

from vqlab.benchmarks.train_step import benchmark_training, default_benchmark_config
from vqlab.cli.command import Command
from vqlab.storage import write_json


def add_bench_arguments(parser: ArgumentParser) -> None:
    """Options of `vqlab bench`."""
    parser.add_argument("what", type=Literal["train"], help="train: whole training steps of every quantizer, bf16 and float32, Lightning")
    parser.add_argument("--data", type=str, default="sample", help="data set whose images are used")
    parser.add_argument("--data_root", type=str, default="data", help="folder that holds the data sets")
    parser.add_argument("--rounds", type=int, default=6, help="rounds over all candidates")
    parser.add_argument("--steps", type=int, default=8, help="steps of each candidate in a round")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads, 0 for all cores")
    parser.add_argument("--out", type=Path | None, default=None, help="also write the figures to this JSON file")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_bench(options: Namespace) -> None:
    """Measure, print the table, and write JSON where asked."""
    config = default_benchmark_config(options.data, options.data_root, options.threads)
    result = benchmark_training(config, options.rounds, options.steps)
    print(json.dumps(result.to_dict(), indent=2) if options.json else result.table())
    if options.out is not None:
        write_json(options.out, result.to_dict())


BENCH = Command(
    "bench",
    help="measure speed",
    description="Measure speed, everything side by side in one run.",
    usage="train [--option VALUE ...]",
    add_arguments=add_bench_arguments,
    run=run_bench,
)

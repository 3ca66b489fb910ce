"""`vqlab bench`: measurements of speed and memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal, Protocol

from jsonargparse import ArgumentParser, Namespace

from vqlab.benchmarks.candidates import CANDIDATES
from vqlab.benchmarks.encode import benchmark_encoding
from vqlab.benchmarks.figures import plot_growth
from vqlab.benchmarks.quantizers import CODES, DIMS, TOKENS, QuantizerBenchmark, benchmark_quantizers
from vqlab.benchmarks.train_step import benchmark_training, default_benchmark_config
from vqlab.cli.command import Command
from vqlab.storage import write_json


class Result(Protocol):
    """What every benchmark returns."""

    def to_dict(self) -> dict[str, object]: ...

    def table(self) -> str: ...


def add_bench_arguments(parser: ArgumentParser) -> None:
    """Options of `vqlab bench`."""
    parser.add_argument(
        "what",
        type=Literal["quantizers", "train", "encode"],
        help="quantizers: layers by themselves, time and memory; train: whole training steps of every quantizer; encode: files to ids",
    )
    parser.add_argument("--rounds", type=int, default=6, help="rounds over all candidates")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads, 0 for all cores")
    parser.add_argument("--out", type=Path | None, default=None, help="also write the figures to this JSON file")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--data", type=str, default="sample", help="train, encode: data set whose images are used")
    parser.add_argument("--data_root", type=str, default="data", help="train, encode: folder that holds the data sets")
    parser.add_argument("--steps", type=int, default=8, help="train: steps of each candidate in a round")
    parser.add_argument("--images", type=int, default=1000, help="encode: image files")
    parser.add_argument("--candidates", type=list[str], default=list(CANDIDATES), help=f"quantizers: of {', '.join(CANDIDATES)}")
    parser.add_argument("--tokens", type=list[int], default=list(TOKENS), help="quantizers: numbers of tokens N")
    parser.add_argument("--dims", type=list[int], default=list(DIMS), help="quantizers: dimensions d")
    parser.add_argument("--codes", type=list[int], default=list(CODES), help="quantizers: codebook sizes K")
    parser.add_argument("--memory_limit", type=float, default=4.0, help="quantizers: skip what needs more GiB than this")
    parser.add_argument("--time_limit", type=float, default=30.0, help="quantizers: seconds after which a case is not repeated")
    parser.add_argument("--plot", type=Path | None, default=None, help="quantizers: also draw time and memory over K into this PNG file")


def run_bench(options: Namespace) -> None:
    """Measure, print the table, and write JSON and plots where asked."""
    result = _measure(options)
    print(json.dumps(result.to_dict(), indent=2) if options.json else result.table())
    if options.out is not None:
        write_json(options.out, result.to_dict())
    if options.plot is not None and isinstance(result, QuantizerBenchmark):
        plot_growth(result, options.plot)


def _measure(options: Namespace) -> Result:
    if options.what == "quantizers":
        return benchmark_quantizers(
            options.candidates,
            options.tokens,
            options.dims,
            options.codes,
            rounds=options.rounds,
            memory_limit_gib=options.memory_limit,
            time_limit_s=options.time_limit,
            threads=options.threads,
        )
    config = default_benchmark_config(options.data, options.data_root, options.threads)
    if options.what == "encode":
        return benchmark_encoding(config, options.images, options.rounds)
    return benchmark_training(config, options.rounds, options.steps)


BENCH = Command(
    "bench",
    help="measure speed and memory",
    description="Measure speed and memory, everything side by side in one run.",
    usage="quantizers|train|encode [--option VALUE ...]",
    add_arguments=add_bench_arguments,
    run=run_bench,
)

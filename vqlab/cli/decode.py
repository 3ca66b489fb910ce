"""`vqlab decode`: token files back to images."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace
from tqdm import tqdm

from vqlab.cli.command import Command
from vqlab.cli.encode import add_device_arguments, load_on_device
from vqlab.progress import DELAY_SECONDS
from vqlab.tokens import TokenDataset, decode_tokens
from vqlab.training.runtime import tune_process, world


def add_decode_arguments(parser: ArgumentParser) -> None:
    """Options of `vqlab decode`."""
    parser.add_argument("tokens", type=Path, help="folder that `vqlab encode` wrote")
    add_device_arguments(parser)
    parser.add_argument("--out", type=Path, default=Path("images"), help="folder of the images")
    parser.add_argument("--batch_size", type=int, default=256, help="images that are decoded together")
    parser.add_argument("--workers", type=int, default=2, help="threads that write image files")
    parser.add_argument("--overwrite", action="store_true", help="replace image files that are there already")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_decode(options: Namespace) -> None:
    """Decode, and say how many images were written."""
    tune_process()
    tokens = TokenDataset(options.tokens, verify=True)
    tokenizer = load_on_device(options.tokenizer, options.device)
    processes = world()
    with tqdm(total=len(tokens), desc="decode", unit="image", leave=False, delay=DELAY_SECONDS, disable=processes.rank > 0) as bar:
        report = decode_tokens(
            tokenizer,
            tokens,
            options.out,
            batch_size=options.batch_size,
            workers=options.workers,
            overwrite=options.overwrite,
            rank=processes.rank,
            world_size=processes.size,
            advance=bar.update,
        )
    if options.json:
        print(json.dumps({"out": str(options.out), **dataclasses.asdict(report)}, indent=2))
    else:
        print(f"{report.images} images in {options.out}")


DECODE = Command(
    "decode",
    help="turn token files back into images",
    description="Decode token files into PNG files under their source names, with the tokenizer that wrote them.",
    usage="TOKENS --tokenizer TOKENIZER --out FOLDER [--option VALUE ...]",
    add_arguments=add_decode_arguments,
    run=run_decode,
)

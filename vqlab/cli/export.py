"""`vqlab export`: a tokenizer as graphs for other programs."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from vqlab.cli.command import Command
from vqlab.cli.shared import load_tokenizer
from vqlab.errors import VqlabError
from vqlab.export import FORMATS, export_decoder, export_encoder


def add_export_arguments(parser: ArgumentParser) -> None:
    """Options of `vqlab export`."""
    parser.add_argument("tokenizer", type=Path, help="folder of a tokenizer, or of a run that holds one")
    parser.add_argument("--out", type=Path, default=Path("export"), help="folder of the graphs")
    parser.add_argument("--format", type=str, default="onnx", help=f"{' or '.join(FORMATS)}")
    parser.add_argument("--image_size", type=int, default=32, help="side of the images, which the graphs are fixed to")


def run_export(options: Namespace) -> None:
    """Write both graphs and say how close they are to the tokenizer."""
    tokenizer = load_tokenizer(options.tokenizer)
    if options.format not in FORMATS:
        raise VqlabError(f"format must be one of {', '.join(FORMATS)}, got {options.format!r}")
    suffix = FORMATS[options.format]
    check = export_encoder(tokenizer, options.out / f"encoder{suffix}", options.format, options.image_size)
    print(f"{check.path}  {check.equal:.2%} of the ids are the tokenizer's")
    check = export_decoder(tokenizer, options.out / f"decoder{suffix}", options.format, options.image_size)
    print(f"{check.path}  pixels differ by at most {check.difference:.1e}")


EXPORT = Command(
    "export",
    help="write a tokenizer as ONNX or torch graphs",
    description="Write encoder (images to ids) and decoder (ids to images) as graphs, compared with the tokenizer.",
    usage="TOKENIZER --out FOLDER [--format onnx|torch]",
    add_arguments=add_export_arguments,
    run=run_export,
)

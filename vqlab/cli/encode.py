"""`vqlab encode`: images to token files."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

import torch
from jsonargparse import ArgumentParser, Namespace
from tqdm import tqdm

from vqlab.cli.command import Command
from vqlab.cli.shared import load_tokenizer
from vqlab.data import DATA_SETS
from vqlab.progress import DELAY_SECONDS
from vqlab.tokenizer import Tokenizer
from vqlab.tokens import EncodeOptions, encode_images, open_images
from vqlab.tokens.images import MAX_PIXELS
from vqlab.training.runtime import choose_runtime, tune_process, world

#: Exit code of an encoding that is complete but for images that could not be encoded.
SOME_SKIPPED = 3


def add_encode_arguments(parser: ArgumentParser) -> None:
    """Options of `vqlab encode`."""
    names = ", ".join(f"{name}, {name}:train" for name in DATA_SETS)
    parser.add_argument("images", type=str, help=f"folder of images, list of files (.txt, .lst), or a data set ({names})")
    add_device_arguments(parser)
    parser.add_argument("--out", type=Path, default=Path("tokens"), help="folder of the token files")
    parser.add_argument("--data_root", type=Path, default=Path("data"), help="folder that holds the data sets")
    parser.add_class_arguments(EncodeOptions, skip={"bf16", "strict"})
    parser.add_argument("--strict", action="store_true", help="stop at the first image that cannot be encoded, instead of reporting it")
    parser.add_argument("--image_size", type=int | None, default=None, help="resize and crop image files to a square of this side")
    parser.add_argument("--max_pixels", type=int, default=MAX_PIXELS, help="image files with more pixels are not opened")
    parser.add_argument("--precision", type=str, default="float32", help="float32, bf16 or auto")
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_device_arguments(parser: ArgumentParser) -> None:
    """The tokenizer and where it computes."""
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder of a tokenizer, or of a run that holds one")
    parser.add_argument("--device", type=str, default="auto", help="auto, cpu, gpu or mps")


def load_on_device(folder: Path, device: str) -> Tokenizer:
    """The tokenizer on the device that is named; under torchrun each process has its own GPU."""
    accelerator = choose_runtime(device, "float32").accelerator
    if accelerator in ("gpu", "cuda"):
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        accelerator = "cuda"
    return load_tokenizer(folder).to(accelerator)


def run_encode(options: Namespace) -> int:
    """Encode, and say what was done and what was left out."""
    tune_process()
    tokenizer = load_on_device(options.tokenizer, options.device)
    images = open_images(options.images, data_root=options.data_root, image_size=options.image_size, max_pixels=options.max_pixels)
    names = {field.name for field in dataclasses.fields(EncodeOptions)} - {"bf16"}
    settings = EncodeOptions(**{name: options[name] for name in names}, bf16=choose_runtime(options.device, options.precision).bf16)
    processes = world()
    with tqdm(total=len(images), desc="encode", unit="image", leave=False, delay=DELAY_SECONDS, disable=processes.rank > 0) as bar:
        try:
            report = encode_images(
                tokenizer, images, options.out, settings, rank=processes.rank, world_size=processes.size, advance=bar.update
            )
        except KeyboardInterrupt:
            raise KeyboardInterrupt("interrupted; the same command goes on with the shard it was at") from None
    speed = report.images / report.seconds if report.seconds > 0 else 0.0
    if options.json:
        content = {**dataclasses.asdict(report), "skipped": [item._asdict() for item in report.skipped]}
        print(json.dumps({"out": str(options.out), "fingerprint": tokenizer.fingerprint, **content, "images_per_second": speed}, indent=2))
    else:
        who = f"process {processes.rank} of {processes.size}: " if processes.size > 1 else ""
        kept = f", {report.kept} shards were there already" if report.kept else ""
        print(f"{who}{report.images} images in {report.written} shards ({speed:.0f} images/s){kept}")
        print(f"{who}{options.out} is complete" if report.complete else f"{who}done; other processes are still at work")
    for item in report.skipped if not options.json else ():
        print(f"skipped {item.name}: {item.reason}", file=sys.stderr)
    return SOME_SKIPPED if report.skipped else 0


ENCODE = Command(
    "encode",
    help="turn images into token files",
    description="Encode images into sharded token files. Goes on where it was stopped; under torchrun all processes share the shards. "
    f"Exit code {SOME_SKIPPED}: complete, but some images could not be encoded (they are listed).",
    usage="IMAGES --tokenizer TOKENIZER --out FOLDER [--option VALUE ...]",
    add_arguments=add_encode_arguments,
    run=run_encode,
)

"""`vqlab prior`: train an autoregressive model over a tokenizer's ids."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from vqlab.cli.command import Command
from vqlab.cli.shared import add_data_arguments, load_data, load_tokenizer
from vqlab.errors import VqlabError
from vqlab.prior import PriorConfig, resume_prior, train_prior
from vqlab.prior.storage import PriorFolder
from vqlab.training.runtime import tune_process

HELP = {
    "width": "width of the transformer",
    "layers": "layers of the transformer",
    "heads": "attention heads of a layer",
    "conditional": "tell it the class of each image",
    "steps": "optimizer steps: the budget to compare priors by",
    "batch_size": "images per step",
    "lr": "largest learning rate",
    "warmup_steps": "steps until the learning rate is at its largest",
    "weight_decay": "weight decay of matrices",
    "seed": "of initialisation and order",
    "save_every": "steps between checkpoints",
    "log_every": "steps between rows of metrics.csv",
    "precision": "auto, bf16 or float32",
}


def own_fields() -> list[Field[Any]]:
    """Settings of a prior but for its data, which has options of its own."""
    return [field for field in fields(PriorConfig) if field.name != "data"]


def add_prior_arguments(parser: ArgumentParser) -> None:
    """Options of `vqlab prior`."""
    parser.add_argument("tokenizer", type=Path, nargs="?", default=None, help="folder of a tokenizer, or of a run that holds one")
    parser.add_argument("--out", type=Path, default=None, help="new folder of the prior; default priors/NAME")
    parser.add_argument("--resume", type=Path, default=None, help="go on with the prior in this folder; takes no other option")
    add_data_arguments(parser)
    parser.add_argument("--threads", type=int, default=0, help="CPU threads, 0 for all cores")
    for field in own_fields():
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default, help=HELP[field.name])
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_prior(options: Namespace) -> None:
    """Train or go on, then print the figures."""
    tune_process(options.threads)
    if options.resume is not None:
        if options.tokenizer is not None or options.out is not None:
            raise VqlabError("--resume goes on as the training was begun: it takes neither a tokenizer nor --out")
        path = resume_prior(options.resume)
    else:
        if options.tokenizer is None:
            raise VqlabError("name the tokenizer whose ids are to be modelled, or a prior to --resume")
        config = PriorConfig(data=options.data, **{field.name: options[field.name] for field in own_fields()})
        out = options.out or Path("priors") / options.tokenizer.resolve().name
        if out.exists():
            raise VqlabError(f"{out} exists already: choose another --out, or go on with --resume {out}")
        tokenizer, data = load_tokenizer(options.tokenizer), load_data(options)
        path = train_prior(tokenizer, data, config, out, shlex.join(["vqlab", *sys.argv[1:]]))
    figures = json.loads(PriorFolder(path).summary.read_text(encoding="utf-8"))
    print(json.dumps(figures, indent=2) if options.json else _text(path, figures))


def _text(path: Path, figures: dict[str, Any]) -> str:
    shown = ("bits_per_token", "zeroth_order_bits_per_token", "uniform_bits_per_token", "bits_per_image", "bits_per_dim")
    lines = [f"{name:28} {figures[name]:.4f}" for name in shown]
    return "\n".join([*lines, f"prior {path}, draw images with: vqlab sample {path}"])


PRIOR = Command(
    "prior",
    help="model a tokenizer's ids",
    description="Train an autoregressive transformer over a tokenizer's ids and measure it in bits on the test split.",
    usage="TOKENIZER [--option VALUE ...]",
    add_arguments=add_prior_arguments,
    run=run_prior,
)

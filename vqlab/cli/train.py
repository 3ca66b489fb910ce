"""`vqlab train` and `train.py`: the options of a training run."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from jsonargparse import ActionConfigFile, ArgumentParser, Namespace

from vqlab.backbones import ConvConfig, TimmConfig, TitokConfig, ViTConfig
from vqlab.cli.formatting import BriefHelp, HelpAll
from vqlab.config import OptimConfig, RunConfig, TrainConfig
from vqlab.data import FilesConfig
from vqlab.errors import VqlabError
from vqlab.losses import LossConfig
from vqlab.quantizers import CODEBOOKS
from vqlab.results import plot_run
from vqlab.training import load_run_config, train
from vqlab.training.runtime import world

DESCRIPTION = "Train an image tokenizer. Results go to runs/NAME: the tokenizer, tables, summary.json and plots."

#: Sections of `TrainConfig`, with the headings of their options.
SECTIONS: dict[str, tuple[type, str]] = {
    "conv": (ConvConfig, "conv encoder and decoder"),
    "timm": (TimmConfig, "timm encoder"),
    "titok": (TitokConfig, "one-dimensional encoder and decoder"),
    "vit": (ViTConfig, "vit decoder"),
    "files": (FilesConfig, "your own images"),
    "loss": (LossConfig, "reconstruction loss"),
    "optim": (OptimConfig, "optimization"),
    "run": (RunConfig, "run"),
}


class TrainHelp(BriefHelp):
    """What most runs change in full, the rest by name."""

    brief: ClassVar[Mapping[str, str]] = {
        **{SECTIONS[name][1]: name for name in ("timm", "titok", "vit", "files", "loss")},
        **{f"quantizer {kind}": kind for kind in CODEBOOKS if kind not in ("ddcl", "vqvae")},
    }


def add_train_arguments(parser: ArgumentParser) -> None:
    """All options of a training run: the short ones first, everything else by dotted key, grouped."""
    parser.formatter_class = TrainHelp
    parser.add_argument("--help_all", action=HelpAll, help="show every option")
    parser.add_argument("--config", action=ActionConfigFile, help="YAML file of options; later options win")
    parser.add_argument("--resume", type=Path | None, default=None, help="go on with the run in this folder; takes no other option")
    parser.add_class_arguments(TrainConfig, skip={"codebook", *SECTIONS}, fail_untyped=True)
    for name in ("conv", "timm", "titok", "vit"):
        parser.add_class_arguments(SECTIONS[name][0], name, help=SECTIONS[name][1])
    for kind in CODEBOOKS:
        parser.add_class_arguments(CODEBOOKS[kind], kind, skip={"dim", "codebook_size"}, help=f"quantizer {kind}")
    for name in ("files", "loss", "optim", "run"):
        parser.add_class_arguments(SECTIONS[name][0], name, help=SECTIONS[name][1])


def config_from_options(options: Namespace, defaults: Namespace) -> TrainConfig:
    """The checked configuration; VqlabError where settings that have no effect on it were changed."""
    content: dict[str, Any] = options.as_dict()
    for name in ("config", "resume", "help_all"):
        content.pop(name, None)
    for kind in CODEBOOKS:
        if kind == content["quantizer"]:
            continue
        # A kind without settings has no entry.
        default, given = defaults.as_dict().get(kind) or {}, content.pop(kind, None) or {}
        for name, value in given.items():
            if value != default[name]:
                raise VqlabError(f"--{kind}.{name} is set, but the quantizer is {content['quantizer']}: it would have no effect")
    config = TrainConfig.from_dict(content)
    for name, reason in config.unused().items():
        if options[name] != defaults[name]:
            raise VqlabError(f"--{name} is set, but {reason}: it would have no effect")
    return config


def run_train(options: Namespace, given: Namespace, defaults: Namespace) -> None:
    """Train as asked, draw the plots, and say where everything is. given: the options that the user has set, in files or by hand."""
    command = shlex.join(["python", *sys.argv])
    if options.resume is not None:
        others = [name for name in given.as_dict() if name != "resume"]
        if others:
            raise VqlabError(f"--resume goes on exactly as the run was started: it takes no other option, such as --{others[0]}")
        config = load_run_config(options.resume)
        folder = train(config, resume=True, command=command)
    else:
        folder = train(config_from_options(options, defaults), command=command)
    if world().rank > 0:
        return
    plots = plot_run(folder)
    print(f"\ntokenizer  {folder / 'tokenizer'}\nfigures    {folder / 'metrics.csv'}, {folder / 'summary.json'}")
    print(f"plots      {folder / 'plots'} ({', '.join(path.name for path in plots)})")

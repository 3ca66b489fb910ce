"""What several commands have in common: where a tokenizer lies, and which data it is used on."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import ArgumentParser

from vqlab.data import DATA_SETS
from vqlab.tokenizer import Tokenizer


def add_data_arguments(parser: ArgumentParser) -> None:
    """The tokenizer and the data set."""
    parser.add_argument("tokenizer", type=Path, help="folder of a tokenizer, or of a run that holds one")
    parser.add_argument("--data", type=str, default="cifar10", help=f"data set: {', '.join(DATA_SETS)}")
    parser.add_argument("--data_root", type=Path, default=Path("data"), help="folder that holds the data sets")


def tokenizer_folder(folder: Path) -> Path:
    """The folder itself, or its `tokenizer` where it is a run's."""
    inner = folder / "tokenizer"
    return inner if not (folder / "config.json").is_file() and inner.is_dir() else folder


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a tokenizer's or a run's folder, in `eval()` mode; VqlabError where there is none."""
    return Tokenizer.from_pretrained(tokenizer_folder(folder))

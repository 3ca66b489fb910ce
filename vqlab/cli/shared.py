"""What several commands have in common: where a tokenizer lies, and which data it is used on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from vqlab.data import DATA_HELP, FilesConfig, ImageData, load_images
from vqlab.tokenizer import Tokenizer


def add_tokenizer_argument(parser: ArgumentParser) -> None:
    """The tokenizer, by its folder."""
    parser.add_argument("tokenizer", type=Path, help="folder of a tokenizer, or of a run that holds one")


def add_data_arguments(parser: ArgumentParser) -> None:
    """--data, --data_root, --image_size and --files.*; `data_options` reads them."""
    parser.add_argument("--data", type=str, default="cifar10", help=DATA_HELP)
    parser.add_argument("--data_root", type=Path, default=Path("data"), help="folder that holds the data sets")
    parser.add_argument("--image_size", type=int | list[int] | None, default=None, help="pixels that your own images are cropped to")
    parser.add_class_arguments(FilesConfig, "files", help="your own images")


def data_options(options: Namespace) -> dict[str, Any]:
    """The arguments data, data_root, image_size and files of `vqlab.cli.evaluate.evaluate`."""
    files = FilesConfig(**options.files.as_dict())
    return {"data": options.data, "data_root": options.data_root, "image_size": options.image_size, "files": files}


def load_data(options: Namespace) -> ImageData:
    """The data set that `add_data_arguments` names."""
    chosen = data_options(options)
    return load_images(chosen.pop("data"), chosen.pop("data_root"), **chosen)


def tokenizer_folder(folder: Path) -> Path:
    """The folder itself, or its `tokenizer` where it is a run's."""
    inner = folder / "tokenizer"
    return inner if not (folder / "config.json").is_file() and inner.is_dir() else folder


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a tokenizer's or a run's folder, in `eval()` mode; VqlabError where there is none."""
    return Tokenizer.from_pretrained(tokenizer_folder(folder))

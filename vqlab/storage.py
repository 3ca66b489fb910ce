"""Tokenizers on disk: weights as safetensors, everything else as JSON, written so that a crash leaves the previous file."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from vqlab import __version__
from vqlab.errors import VqlabError

FORMAT_VERSION = 1
CONFIG_NAME, WEIGHTS_NAME = "config.json", "model.safetensors"


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call write(temporary path), flush it to disk and move it onto `path`; a failure leaves `path` as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Write `content` as indented JSON, atomically."""
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_tokenizer(folder: Path, state: dict[str, Tensor], config: dict[str, Any]) -> Path:
    """Weights and configuration of a tokenizer into `folder`; the configuration last, since it is what makes the folder a tokenizer."""
    # Copies: safetensors refuses tensors that share memory or are not contiguous.
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}
    write_atomically(folder / WEIGHTS_NAME, lambda path: save_file(tensors, path, metadata={"format": "pt"}))
    write_json(folder / CONFIG_NAME, {"format_version": FORMAT_VERSION, "vqlab_version": __version__, "tokenizer": config})
    return folder


def read_tokenizer(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Configuration and weights of a tokenizer folder; VqlabError names the file that is missing, damaged or of another version."""
    path = folder / CONFIG_NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise VqlabError(f"{folder} is not a tokenizer: it has no {CONFIG_NAME}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise VqlabError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("tokenizer"), dict):
        raise VqlabError(f"{path} is not the configuration of a vqlab tokenizer")
    if content.get("format_version") != FORMAT_VERSION:
        raise VqlabError(f"{path}: format_version is {content.get('format_version')!r}, this vqlab reads {FORMAT_VERSION}")
    weights = folder / WEIGHTS_NAME
    try:
        return content["tokenizer"], load_file(weights)
    except (OSError, SafetensorError) as error:
        raise VqlabError(f"cannot read {weights}: {error}") from error

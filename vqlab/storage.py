"""Tokenizers on disk: weights as safetensors, everything else as JSON, written so that a crash leaves the previous file."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from vqlab import __version__
from vqlab.errors import VqlabError
from vqlab.migrate import FORMAT_VERSION, migrate

#: Where the header of the weights keeps their checksum.
CHECKSUM = "sha256"
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
    metadata = {"format": "pt", CHECKSUM: checksum(tensors)}
    write_atomically(folder / WEIGHTS_NAME, lambda path: save_file(tensors, path, metadata=metadata))
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
    try:
        migrate({}, content.get("format_version"))  # a later version may also have other weights: refused before they are read
    except ValueError as error:
        raise VqlabError(f"{path}: {error}") from error
    weights = folder / WEIGHTS_NAME
    return content["tokenizer"], migrate(_read_weights(weights), content["format_version"])


def _read_weights(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            expected = (file.metadata() or {}).get(CHECKSUM)
        state = load_file(path)
    # Element types that this torch does not have, and headers that are no text, end in other errors than a damaged file.
    except (OSError, SafetensorError, ValueError, KeyError, AttributeError, RuntimeError) as error:
        raise VqlabError(f"cannot read {path}: {error}") from error
    if expected is not None and expected != checksum(state):  # the first format has none
        raise VqlabError(f"cannot read {path}: it is damaged, its weights are not those that were written")
    return state


def checksum(tensors: dict[str, Tensor]) -> str:
    """SHA-256, in hexadecimal, of names, types, shapes and values."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()

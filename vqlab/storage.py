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
import yaml
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from vqlab import __version__
from vqlab.errors import VqlabError
from vqlab.fingerprint import fingerprint
from vqlab.migrate import FORMAT_VERSION, migrate

#: Where the header of the weights keeps their checksum.
CHECKSUM = "sha256"
CONFIG_NAME, WEIGHTS_NAME = "config.json", "model.safetensors"
#: Bytes of the largest configuration that is read.
MAX_CONFIG_BYTES = 2**20
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


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


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path, max_bytes: int, missing: str) -> Any:
    """The content of a JSON file. VqlabError: `missing` where there is no such file, else naming one that is damaged or too large."""
    return _read_text(path, max_bytes, missing, lambda text: json.loads(text, parse_constant=_refuse_constant))


def read_yaml(path: Path) -> Any:
    """The content of a YAML file of plain types; VqlabError, in one line, for one that is missing, damaged or too large."""
    return _read_text(path, MAX_CONFIG_BYTES, f"there is no file {path}", yaml.safe_load)


def _read_text(path: Path, max_bytes: int, missing: str, parse: Callable[[str], Any]) -> Any:
    try:
        with open(path, "rb") as file:
            text = file.read(max_bytes + 1)
        if len(text) > max_bytes:
            raise VqlabError(f"{path} is larger than the {max_bytes:,} bytes that are read")
        return parse(text.decode("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise VqlabError(missing) from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise VqlabError(f"cannot read {path}: {' '.join(str(error).split())}") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def write_tokenizer(folder: Path, state: dict[str, Tensor], config: dict[str, Any]) -> Path:
    """Weights and configuration of a tokenizer into `folder`; the configuration last, since it is what makes the folder a tokenizer."""
    # Copies: safetensors refuses tensors that share memory or are not contiguous.
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}
    # One entry: the order of several is not the same in every process, and equal weights shall give equal bytes.
    metadata = {CHECKSUM: fingerprint({}, tensors)}
    write_atomically(folder / WEIGHTS_NAME, lambda path: save_file(tensors, path, metadata=metadata))
    write_json(folder / CONFIG_NAME, {"format_version": FORMAT_VERSION, "vqlab_version": __version__, "tokenizer": config})
    return folder


def read_tokenizer(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Configuration and weights of a tokenizer folder; VqlabError names the file that is missing, damaged or of another version."""
    path = folder / CONFIG_NAME
    content = read_json(path, MAX_CONFIG_BYTES, missing=f"{folder} is not a tokenizer: it has no {CONFIG_NAME}")
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
    if expected is not None and expected != fingerprint({}, state):  # the first format has none
        raise VqlabError(f"cannot read {path}: it is damaged, its weights are not those that were written")
    return state


def check_state(name: str, own: dict[str, Tensor], state: dict[str, Tensor]) -> None:
    """VqlabError, naming `name` and the tensor, unless `state` has the tensors of `own`, of their shapes and kinds, all of them finite.

    own: may lie on the device "meta". Floating-point tensors may be of another precision.
    """
    for tensor in sorted(own.keys() | state.keys()):
        if tensor not in state:
            raise VqlabError(f"{name}: the weights lack {tensor!r}, which the configuration asks for")
        if tensor not in own:
            raise VqlabError(f"{name}: the weights hold {tensor!r}, which the configuration does not know")
        wanted, found = own[tensor], state[tensor]
        if wanted.shape != found.shape:
            raise VqlabError(f"{name}: {tensor!r} has shape {tuple(found.shape)}, the configuration asks for {tuple(wanted.shape)}")
        if found.dtype != wanted.dtype and not (found.dtype in _FLOATS and wanted.dtype in _FLOATS):
            raise VqlabError(f"{name}: {tensor!r} is of type {found.dtype}, the configuration asks for {wanted.dtype}")
        if found.dtype in _FLOATS and not bool(torch.isfinite(found).all()):
            raise VqlabError(f"{name}: {tensor!r} holds NaN or infinity")

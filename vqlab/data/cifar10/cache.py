"""Our own copy of CIFAR-10 in the data folder: one safetensors file, replaced in one step."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from vqlab.data.cifar10.arrays import Cifar10Arrays, SourceError
from vqlab.storage import write_atomically


def cache_path(root: Path) -> Path:
    """Where the copy lies below the data folder."""
    return root / "cifar10" / "cifar10.safetensors"


def read_cache(root: Path) -> Cifar10Arrays:
    """The arrays in the copy, not yet verified; SourceError where it is missing or unreadable."""
    path = cache_path(root)
    if not path.exists():
        raise SourceError("not there")
    try:
        return Cifar10Arrays(**load_file(path))
    except (SafetensorError, TypeError, OSError, ValueError) as error:
        raise SourceError(f"unreadable ({error})") from error


def write_cache(root: Path, arrays: Cifar10Arrays) -> Path:
    """Write the copy and return its path.

    At every moment the file is absent, the old one or the new one, also while other processes write it too.
    """
    path = cache_path(root)
    write_atomically(path, lambda temporary: save_file(arrays._asdict(), temporary))
    return path

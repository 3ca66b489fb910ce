"""The optional dependencies of the experiments, and what is said where they are missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vqlab.errors import VqlabError


@contextmanager
def needs_extra() -> Iterator[None]:
    """Turn a missing package into one line that tells what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise VqlabError(f'the package {error.name} is missing: pip install "vqlab[readout]"') from error

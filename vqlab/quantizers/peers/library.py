"""The optional library that some peers are taken from."""

from __future__ import annotations

import importlib
from types import ModuleType

from vqlab.errors import VqlabError

LIBRARY = "vector_quantize_pytorch"


def load_library(kind: str) -> ModuleType:
    """The package `vector_quantize_pytorch`; VqlabError naming the extra to install where it is missing.

    Source: Phil Wang and contributors, https://github.com/lucidrains/vector-quantize-pytorch.
    """
    try:
        return importlib.import_module(LIBRARY)
    except ImportError as error:
        raise VqlabError(
            f"quantizer {kind!r} needs vector-quantize-pytorch ({error}): install the extra 'peers': pip install -e \".[peers]\""
        ) from error

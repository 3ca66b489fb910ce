"""Libraries that only some commands need: imported when they are used, with one clear error where they are missing."""

from __future__ import annotations

import importlib
from types import ModuleType

from vqlab.errors import VqlabError


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import `module`; VqlabError that says what needs it and which extra of this package installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise VqlabError(f"{purpose} needs the library {module.split('.')[0]!r} ({error}): pip install 'vqlab[{extra}]'") from error

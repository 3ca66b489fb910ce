"""Files of earlier versions: what their weights lack, added when they are read."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

#: Version of what this vqlab writes, tokenizers and checkpoints of runs alike.
FORMAT_VERSION = 2

State = dict[str, Any]
_LEVEL = re.compile(r"(?:tokenizer\.)?quantizer\.levels\.\d+(?=\.)")


def add_frozen(state: State) -> State:
    """1 -> 2: whether a codebook is frozen became part of its state; until then loading left it free to move."""
    levels = {match[0] for name in state if isinstance(name, str) and (match := _LEVEL.match(name))}
    return {**{f"{level}._extra_state": torch.tensor(False) for level in levels}, **state}


#: From each version to the next.
MIGRATIONS: dict[int, Callable[[State], State]] = {1: add_frozen}


def migrate(state: State, version: object) -> State:
    """Weights of format `version` (the whole state dict) as this vqlab has them. Raises ValueError for a version it does not know."""
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version <= FORMAT_VERSION:
        newer = isinstance(version, int) and not isinstance(version, bool) and version > FORMAT_VERSION
        hint = "; it was written by a later vqlab" if newer else ""
        raise ValueError(f"format_version is {version!r}, this vqlab reads 1 to {FORMAT_VERSION}{hint}")
    for step in range(version, FORMAT_VERSION):
        state = MIGRATIONS[step](state)
    return state

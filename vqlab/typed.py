"""Values that users write, against the types that are declared for them."""

from __future__ import annotations

import numbers
import types
import typing
from collections.abc import Mapping
from typing import Any, Union


def fits(value: Any, hint: Any) -> bool:
    """Whether a plain value is of a declared type: int, float, str, bool, None, list[...], dict, unions of them, dataclasses.

    True and False are no numbers; integers are also floats. Types of other kinds are not looked into.
    """
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, choice) for choice in typing.get_args(hint))
    if origin is list:
        return isinstance(value, list) and all(fits(item, typing.get_args(hint)[0]) for item in value)
    if origin is dict or hint is dict:
        return isinstance(value, dict)
    if hint in (int, float):
        return not isinstance(value, bool) and isinstance(value, numbers.Integral if hint is int else numbers.Real)
    if hint is None:
        return value is None
    return isinstance(value, hint) if isinstance(hint, type) else True


def check_types(values: Mapping[str, Any], hints: Mapping[str, Any], prefix: str = "") -> None:
    """Raise TypeError, naming the first of `values` that is not of the type declared under its name; names without a type pass."""
    for name, value in values.items():
        if name in hints and not fits(value, hints[name]):
            hint = hints[name]
            declared = hint.__name__ if isinstance(hint, type) and typing.get_origin(hint) is None else str(hint)
            shown = repr(value)
            raise TypeError(f"{prefix}{name} must be of type {declared}, got {shown if len(shown) < 100 else shown[:97] + '...'}")

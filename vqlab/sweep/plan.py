"""From a sweep's file to the list of its runs: every combination of the axes, checked before anything is trained.

base: [../base.yaml]              configuration files, relative to this one, later ones win
settings: {epochs: 4, ...}        nested or dotted keys, for all runs
axes:                             any dotted key of the configuration
  quantizer: [ddcl, vqvae]
  codebook_size: [512, 2048]
  ddcl.tau_end: [0.004, 0.01]     settings of one quantizer: an axis of its runs alone
  seed: [0, 1, 2]
"""

from __future__ import annotations

import copy
import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vqlab.config import TrainConfig
from vqlab.errors import VqlabError
from vqlab.quantizers import CODEBOOKS
from vqlab.storage import read_yaml
from vqlab.tokenizer import Tokenizer

KEYS = {"base", "settings", "axes"}


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep. point: its value on every axis that applies to it, by dotted key."""

    name: str
    point: dict[str, Any]
    config: TrainConfig


@dataclass(frozen=True)
class Sweep:
    """What a file asks for. axes: dotted key -> values, in the file's order.  runs: all combinations."""

    name: str
    axes: dict[str, list[Any]]
    runs: list[PlannedRun]


def load_sweep(path: str | Path, root: str | Path, overrides: dict[str, Any] | None = None) -> Sweep:
    """Read and check a sweep; its runs will live under `root`. overrides: dotted keys that win over the file's settings, but not its axes.

    VqlabError, naming the file and the key, for anything that is unknown, refused or asked for twice.
    """
    path = Path(path)
    content = _read(path)
    unknown = sorted(set(content) - KEYS)
    if unknown:
        raise VqlabError(f"{path}: unknown key {unknown[0]!r}; a sweep has {', '.join(sorted(KEYS))}")
    axes = _axes(path, content.get("axes"))
    settings: dict[str, Any] = {}
    for file in _list(content.get("base", [])):
        _merge(settings, _read(path.parent / str(file)))
    _merge(settings, _mapping(path, "settings", content.get("settings", {})))
    _merge(settings, {**(overrides or {}), "run.root": str(root)})
    runs: dict[str, PlannedRun] = {}
    for values in itertools.product(*axes.values()):
        run = _plan(path, settings, dict(zip(axes, values, strict=True)))
        if runs.setdefault(run.name, run).point != run.point:
            raise VqlabError(f"{path}: two runs would have the name {run.name!r}")
    return Sweep(path.stem, axes, list(runs.values()))


def _plan(path: Path, settings: dict[str, Any], point: dict[str, Any]) -> PlannedRun:
    quantizer = str(point.get("quantizer", settings.get("quantizer", TrainConfig.quantizer)))
    # Settings of another quantizer are no axis of this one's runs: its combinations then fall together.
    others = set(CODEBOOKS) - {quantizer}
    point = {key: value for key, value in point.items() if key.split(".")[0] not in others}
    content = {key: value for key, value in copy.deepcopy(settings).items() if key not in others}
    _merge(content, point)
    name = "-".join(_word(key, value) for key, value in point.items())
    content["name"] = name
    try:
        config = TrainConfig.from_dict(content)
        Tokenizer(config.tokenizer_config())  # what only a quantizer or a backbone refuses
    except VqlabError as error:
        raise VqlabError(f"{path}: run {name}: {error}") from error
    return PlannedRun(name, point, config)


def _word(key: str, value: Any) -> str:
    """A short word for a folder's name: ddcl, k512, seed0, tau_end0.004."""
    text = re.sub(r"[^\w.+]+", "_", str(value)).strip("_")
    last = key.rsplit(".", 1)[-1]
    return text if last == "quantizer" else f"{'k' if last == 'codebook_size' else last}{text}"


def _axes(path: Path, axes: Any) -> dict[str, list[Any]]:
    axes = _mapping(path, "axes", axes)
    if not axes:
        raise VqlabError(f"{path}: a sweep needs at least one axis under 'axes'")
    for key, values in axes.items():
        if not isinstance(values, list) or not values:
            raise VqlabError(f"{path}: axis {key} must be a list of at least one value, got {values!r}")
        if len({repr(value) for value in values}) < len(values):
            raise VqlabError(f"{path}: axis {key} names a value twice")
        if key in ("name", "run.root"):
            raise VqlabError(f"{path}: {key} cannot be an axis: a sweep names its runs")
    return axes


def _mapping(path: Path, name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise VqlabError(f"{path}: {name!r} must be a mapping of keys to values, got {value!r}")
    return value


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _read(path: Path) -> dict[str, Any]:
    return _mapping(path, "the file", read_yaml(path))


def _merge(into: dict[str, Any], values: dict[str, Any]) -> None:
    """Nested and dotted keys of `values` into the nested `into`."""
    for key, value in values.items():
        first, dot, rest = key.partition(".")
        if dot or isinstance(value, dict):
            inner = into.setdefault(first, {})
            if not isinstance(inner, dict):
                raise VqlabError(f"{key}: {first} has a value, not settings of its own")
            _merge(inner, {rest: value} if dot else value)
        else:
            into[key] = value

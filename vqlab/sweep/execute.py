"""Train the runs of a sweep one after the other: finished ones are skipped, interrupted ones go on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vqlab.config import TrainConfig
from vqlab.errors import VqlabError
from vqlab.quantizers import NonFiniteError, build_codebook
from vqlab.results import plot_run
from vqlab.sweep.plan import PlannedRun, Sweep
from vqlab.training import load_run_config, train

#: Settings that change how a run computes or shows itself, not what comes out.
FREE = {"run": {"root", "data_root", "threads", "progress", "tensorboard", "usage_warning"}}


@dataclass
class SweepOutcome:
    """Folders of the runs that are complete, and why others failed, by name."""

    folders: dict[str, Path] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def run_sweep(sweep: Sweep, command: str | None = None, tell: Callable[[str], None] = print) -> SweepOutcome:
    """Train what is missing. A run that diverges is told of and left; the others go on.

    VqlabError where a folder holds a run with other settings. KeyboardInterrupt after Ctrl-C: the next call goes on from there.
    """
    outcome = SweepOutcome()
    for run in sweep.runs:
        _check_same(run, Path(run.config.run.root) / run.name)
    for number, run in enumerate(sweep.runs, 1):
        folder = Path(run.config.run.root) / run.name
        head = f"[{number}/{len(sweep.runs)}] {run.name}"
        if is_finished(folder, run.config):
            tell(f"{head}: done already")
        else:
            resume = (folder / "checkpoints" / "last.ckpt").is_file()
            tell(f"{head}: {'resumed' if resume else 'started'}")
            if folder.exists() and not resume:
                shutil.rmtree(folder)  # left before its first checkpoint, checked above to be this run's
            try:
                train(run.config, resume=resume, command=command)
            except NonFiniteError as error:
                tell(f"{head}: failed: {error}")
                outcome.failures[run.name] = str(error)
                continue
            plot_run(folder)
        outcome.folders[run.name] = folder
    return outcome


def is_finished(folder: Path, config: TrainConfig) -> bool:
    """Whether the folder holds a run that has had all its epochs."""
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(summary, dict) and summary.get("epochs") == config.epochs


def _check_same(run: PlannedRun, folder: Path) -> None:
    if not folder.exists():
        return
    if not (folder / "config.yaml").is_file():
        raise VqlabError(f"{folder} is in the way: it is not the folder of a run")
    planned, found = _fixed(run.config), _fixed(load_run_config(folder))
    different = [key for key in sorted(planned.keys() | found.keys()) if planned.get(key) != found.get(key)]
    if different:
        key = different[0]
        raise VqlabError(
            f"{folder} was trained with {key} {found.get(key)!r}, the sweep asks for {planned.get(key)!r}: "
            "choose another --out, or remove the folder"
        )


def _fixed(config: TrainConfig) -> dict[str, Any]:
    """Dotted settings that decide what a run gives, every one of the quantizer's written out."""
    content = config.to_dict()
    for section, names in FREE.items():
        content[section] = {key: value for key, value in content[section].items() if key not in names}
    levels = config.tokenizer_config()["quantizer"]["levels"]
    if levels:
        content[config.quantizer] = build_codebook(levels[0], config.latent_dim).settings()
    return _dotted(content)


def _dotted(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            result |= _dotted(value, f"{prefix}{key}.")
        else:
            result[prefix + key] = value
    return result

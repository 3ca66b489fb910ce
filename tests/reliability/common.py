"""Small trainings for the scripts in this folder, and what two of them have in common."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import vqlab.training.run
from vqlab.config import TrainConfig
from vqlab.data import ImageData, ImageSplit, load_images

#: EMA with revival at nearly every check, so that revived codes and their counts are part of what has to be equal.
BUSY = {"revival_threshold": 0.9, "revival_interval": 2, "ema_decay": 0.8}
KINDS: dict[str, dict[str, Any]] = {
    "ddcl": {},
    "vqvae": {"quantizer": "vqvae", "vqvae": BUSY},
    "residual": {"levels": 2, "level_dropout": 0.5},
    "residual-vqvae": {"quantizer": "vqvae", "vqvae": BUSY, "levels": 2, "level_dropout": 0.5},
}
#: Figures that depend on the clock.
CLOCK = ("train/images_per_second", "seconds")


def use_few_images(train: int = 64, test: int = 20) -> None:
    """Whatever data set a run of this process asks for, it gets so many images of 16x16 pixels."""
    data = load_images("sample")

    def cut(split: ImageSplit, count: int) -> ImageSplit:
        return ImageSplit(split.images[:count, :, 8:24, 8:24].contiguous(), split.labels[:count])

    small = ImageData("few", cut(data.train, train), cut(data.test, test), data.classes)
    vqlab.training.run.load_images = lambda *_, **__: small  # type: ignore[assignment]


def small_config(kind: str, root: Path, name: str, **changes: Any) -> TrainConfig:
    """A run of two epochs of 8 steps that takes about a second; `changes` at the top level or of section `run`."""
    settings = dict(KINDS[kind])
    optim = {"warmup_steps": 3} | ({"level_dropout": settings.pop("level_dropout")} if "level_dropout" in settings else {})
    run = {"precision": "float32", "device": "cpu", "threads": 1, "progress": False, "tensorboard": False, "log_every": 1}
    content: dict[str, Any] = {
        "data": "sample",
        "codebook_size": 16,
        "codebook_dim": 4,
        "epochs": 2,
        "batch_size": 8,
        "lr": 3e-3,
        "name": name,
        "conv": {"width": 8, "residual_blocks": 1, "residual_width": 4},
        "optim": optim,
        "run": {**run, "root": str(root), **changes.pop("run", {})},
        **settings,
        **changes,
    }
    return TrainConfig.from_dict(content)


def contents(folder: Path) -> dict[str, Any]:
    """All that a finished run holds, by name, tensors as bytes, without what depends on the clock.

    Of the checkpoint: weights, optimizer, learning rates, temperatures, normalisation, place in the data, random state, the rows of the
    tables. Of the folder: tables, code counts, reconstructions, the tokenizer's files.
    """
    content = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    found: dict[str, Any] = {}
    for part in ("state_dict", "optimizer_states", "lr_schedulers", "callbacks", "global_step", "epoch"):
        _flatten(content[part], part, found)
    _flatten(content["loops"]["fit_loop"]["state_dict"], "loader", found)
    for name in ("metrics.csv", "steps.csv"):
        table = pd.read_csv(folder / name, dtype=str).drop(columns=list(CLOCK), errors="ignore")
        found[name] = table.to_csv(index=False)
    for name in ("tokenizer/model.safetensors", "tokenizer/config.json", "counts.npz", "reconstructions.npz"):
        found[name] = (folder / name).read_bytes()
    return found


def _flatten(value: Any, name: str, into: dict[str, Any]) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in CLOCK:
                _flatten(item, f"{name}/{key}", into)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            _flatten(item, f"{name}/{number}", into)
    else:
        into[name] = value.numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value)


def differences(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Names under which two runs differ, byte for byte."""
    return sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))


def start_child(action: Callable[[], object], output: Path) -> int:
    """Fork a process that runs `action` with its output in a file; its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        action()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def exit_code(pid: int) -> int:
    """Waits for a child; minus the signal's number where one ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

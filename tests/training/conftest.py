"""A handful of images in place of a data set, and what two runs have in common."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vqlab.data import ImageData, ImageSplit, load_images

#: Columns that depend on the clock.
CLOCK = ("train/images_per_second",)


@pytest.fixture
def few_images(monkeypatch: pytest.MonkeyPatch) -> ImageData:
    """64 training and 20 test images, 16x16 pixels, for whatever data set a run asks for: 8 steps an epoch at batch size 8."""
    data = load_images("sample")

    def cut(split: ImageSplit, count: int) -> ImageSplit:
        return ImageSplit(split.images[:count, :, 8:24, 8:24].contiguous(), split.labels[:count])

    small = ImageData("few", cut(data.train, 64), cut(data.test, 20), data.classes)
    monkeypatch.setattr("vqlab.training.run.load_images", lambda name, root, **options: small)
    return small


@pytest.fixture
def comparable() -> Callable[[Path], dict[str, Any]]:
    """What a checkpoint holds, as flat names to values, without what depends on the clock."""

    def flatten(value: Any, name: str, into: dict[str, Any]) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                if key not in (*CLOCK, "seconds"):
                    flatten(item, f"{name}/{key}", into)
        elif isinstance(value, (list, tuple)):
            for number, item in enumerate(value):
                flatten(item, f"{name}/{number}", into)
        else:
            into[name] = value.numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value)

    def read(path: Path) -> dict[str, Any]:
        content = torch.load(path, weights_only=True)
        into: dict[str, Any] = {}
        for part in ("state_dict", "optimizer_states", "lr_schedulers", "callbacks", "global_step", "epoch"):
            flatten(content[part], part, into)
        flatten(content["loops"]["fit_loop"]["state_dict"], "loader", into)
        return into

    return read


@pytest.fixture
def snapshot() -> Callable[[Path], dict[str, bytes]]:
    """Every file below a folder, with its bytes."""

    def take(folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}

    return take


@pytest.fixture(autouse=True)
def _keep_warning_filters() -> Any:
    """Training silences some of Lightning's warnings for the process; tests give the filters back."""
    with warnings.catch_warnings():
        yield

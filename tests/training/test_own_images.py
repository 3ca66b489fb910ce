"""Whole runs on folders of images, and with other backbones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from vqlab.cli.evaluate import evaluate
from vqlab.data import FilesConfig
from vqlab.errors import VqlabError
from vqlab.tokenizer import Tokenizer
from vqlab.training import train


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    random = np.random.default_rng(0)
    for i in range(40):
        height, width = random.integers(20, 60, 2)
        pixels = Image.fromarray(random.integers(0, 256, (4, 5, 3), np.uint8)).resize((int(width), int(height)))
        pixels.save(folder / f"{i:02}.{('png', 'jpg')[i % 2]}")
    (folder / "broken.png").write_text("no image")
    return folder


@pytest.mark.parametrize("memory_mb", [100, 0])
def test_a_folder_trains_resumes_and_is_evaluated(photos: Path, memory_mb: int, make_config: Any, comparable: Any) -> None:
    settings = {"data": str(photos), "image_size": [16, 24], "files": {"memory_mb": memory_mb, "test_share": 0.3}}
    folder = train(make_config(name="whole", **settings))
    content = json.loads((folder / "data.json").read_text())
    assert content["train_images"] + content["test_images"] == 40
    assert list(content["skipped"]) == ["broken.png"]
    assert content["image_size"] == [16, 24]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["bits_per_image"] == 4 * 6 * 4
    with np.load(folder / "reconstructions.npz") as pictures:
        assert pictures["hard"].shape[1:] == (3, 16, 24)
    figures = evaluate(folder, str(photos), Path("data"), 500, image_size=[16, 24], files=FilesConfig(test_share=0.3))
    row = pd.read_csv(folder / "metrics.csv").iloc[-1]
    assert figures["hard/psnr"] == pytest.approx(row["test/hard/psnr"], rel=1e-4)
    train(make_config(name="stopped", **settings), max_steps=3)
    resumed = train(make_config(name="stopped", **settings), resume=True)
    first, second = (comparable(run / "checkpoints" / "last.ckpt") for run in (folder, resumed))
    assert [name for name in first if first[name] != second[name]] == []


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_no_digit(workers: int, photos: Path, make_config: Any, comparable: Any) -> None:
    settings = {"data": str(photos), "image_size": [16, 24]}
    alone, helped = (
        train(make_config(name=f"workers{n}", **settings, files={"memory_mb": 0, "test_share": 0.3, "workers": n})) for n in (0, workers)
    )
    first, second = (comparable(folder / "checkpoints" / "last.ckpt") for folder in (alone, helped))
    assert [name for name in first if first[name] != second[name]] == []
    for name in ("tokenizer/model.safetensors", "counts.npz", "reconstructions.npz"):
        assert (alone / name).read_bytes() == (helped / name).read_bytes(), name


def test_resuming_with_other_images_is_refused(photos: Path, make_config: Any) -> None:
    settings = {"data": str(photos), "image_size": 16}
    train(make_config(**settings), max_steps=2)
    (photos / "05.jpg").rename(photos / "other.jpg")
    with pytest.raises(VqlabError, match="files were added or removed"):
        train(make_config(**settings), resume=True)


def test_strict_and_sizes_that_do_not_divide(photos: Path, make_config: Any, tmp_path: Path) -> None:
    with pytest.raises(VqlabError, match=r"broken\.png"):
        train(make_config(data=str(photos), image_size=16, files={"strict": True}))
    with pytest.raises(VqlabError, match="18x18 pixels do not divide into tokens of 4x4"):
        train(make_config(data=str(photos), image_size=18))
    assert not (tmp_path / "runs").exists()


VIT = {"patch_size": 4, "image_size": 16, "options": {"depth": 1, "embed_dim": 24, "num_heads": 2}}


@pytest.mark.parametrize(
    "settings",
    [
        {"encoder": "timm:vit_tiny_patch16_224", "timm": VIT, "decoder": "vit", "vit": {"width": 24, "depth": 1}, "conv": None},
        {"encoder": "timm:resnet10t", "timm": {"stage": 1, "frozen": True}},
        {"encoder": "titok", "titok": {"image_size": 16, "tokens": 6, "width": 24, "depth": 1}, "conv": None},
        {"topology": "pyramid", "levels": 3, "optim": {"level_dropout": 0.5}},
        {"topology": "pyramid", "levels": 2, "quantizer": "vqvae", "decoder": "vit", "vit": {"width": 24, "depth": 1}},
        {"loss": {"l2": 0.5, "l1": 0.5}},
    ],
    ids=lambda settings: "-".join(map(str, list(settings.values())[:2])),
)
def test_other_backbones_train_and_resume_exactly(settings: dict[str, Any], make_config: Any, few_images: Any, comparable: Any) -> None:
    whole = train(make_config(name="whole", **settings))
    loss = pd.read_csv(whole / "metrics.csv")["train/reconstruction"]
    assert loss.iloc[-1] < loss.iloc[0]
    tokenizer = Tokenizer.from_pretrained(whole / "tokenizer")
    ids = tokenizer.encode(few_images.test.images)
    assert tokenizer.decode_indices(ids).shape == (20, 3, 16, 16)
    bits = json.loads((whole / "summary.json").read_text())["bits_per_image"]
    tokens = tokenizer.quantizer.tokens_per_level(tokenizer.token_grid(16, 16))
    assert bits == pytest.approx(4 * sum(tokens))
    train(make_config(name="stopped", **settings), max_steps=5)
    resumed = train(make_config(name="stopped", **settings), resume=True)
    first, second = (comparable(run / "checkpoints" / "last.ckpt") for run in (whole, resumed))
    assert [name for name in first if first[name] != second[name]] == []

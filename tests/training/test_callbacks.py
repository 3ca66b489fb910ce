"""Rows of the tables, warnings, the progress bar."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pandas as pd
import pytest
import torch

from vqlab.data import ImageData
from vqlab.tokenizer import Tokenizer
from vqlab.training import train
from vqlab.training.callbacks import TrainingBar
from vqlab.training.module import TokenizerModule

DDCL_LEVEL = {"utilization", "perplexity", "soft_perplexity", "assignment_perplexity", "L_q", "L_OLS", "V", "entropy", "margin"}
DDCL_LEVEL |= {"separation", "separation_nearest", "free_energy", "tau", "temperature"}
VQVAE_LEVEL = {"utilization", "perplexity", "distortion", "commitment", "revived"}
IMAGE = {"mse", "psnr", "psnr_pooled", "ssim"}


def columns(table: pd.DataFrame, prefix: str) -> set[str]:
    return {name.removeprefix(prefix) for name in table if name.startswith(prefix)}


@pytest.mark.parametrize(("quantizer", "level"), [("ddcl", DDCL_LEVEL), ("vqvae", VQVAE_LEVEL), ("none", set())])
def test_columns(quantizer: str, level: set[str], make_config: Any, few_images: ImageData) -> None:
    folder = train(make_config(quantizer=quantizer))
    table, steps = pd.read_csv(folder / "metrics.csv"), pd.read_csv(folder / "steps.csv")
    assert {"epoch", "step", "lr", "train/loss", "train/reconstruction", "train/images_per_second"} <= set(table)
    assert level <= columns(table, "train/level1/")
    assert level - {"margin", "separation", "separation_nearest"} <= columns(table, "test/level1/")
    assert columns(table, "test/hard/") == IMAGE
    assert columns(table, "test/soft/") == (IMAGE if quantizer == "ddcl" else set())
    assert ("test/gap" in table) == (quantizer == "ddcl")
    assert not columns(table, "test/prefix")
    assert {"epoch", "step", "loss", "reconstruction", "lr"} <= set(steps)
    assert {"V", "L_OLS", "L_q", "margin", "tau"} & level <= columns(steps, "level1/")
    assert bool(columns(steps, "level")) == bool(level)
    assert (table["train/images_per_second"] > 0).all()
    if quantizer == "ddcl":
        pd.testing.assert_series_equal(table["test/gap"], table["test/soft/psnr"] - table["test/hard/psnr"], check_names=False)


def test_epoch_means_are_those_of_the_steps(make_config: Any, few_images: ImageData) -> None:
    folder = train(make_config())
    table, steps = pd.read_csv(folder / "metrics.csv"), pd.read_csv(folder / "steps.csv")
    assert steps["epoch"].tolist() == [1] * 8 + [2] * 8
    means = steps.groupby("epoch")[["loss", "reconstruction", "level1/V", "level1/L_q"]].mean()
    for theirs, ours in (("loss", "loss"), ("reconstruction", "reconstruction"), ("level1/V", "level1/V"), ("level1/L_q", "level1/L_q")):
        assert table[f"train/{ours}"].tolist() == pytest.approx(means[theirs].tolist(), rel=1e-5)


@pytest.mark.parametrize(("log_every", "steps"), [(1, list(range(1, 17))), (3, [1, 4, 7, 10, 13, 16]), (100, [1])])
def test_log_every(log_every: int, steps: list[int], make_config: Any, few_images: ImageData) -> None:
    folder = train(make_config(run={"log_every": log_every}))
    assert pd.read_csv(folder / "steps.csv")["step"].tolist() == steps


def test_warns_of_a_falling_usage(make_config: Any, few_images: ImageData, capsys: pytest.CaptureFixture[str]) -> None:
    # A plain codebook of 512 codes for 16 tokens an image: most are never chosen.
    settings = {"quantizer": "vqvae", "codebook_size": 512, "vqvae": {"update": "gradient", "init": "random", "revival_threshold": 0.0}}
    folder = train(make_config(epochs=1, **settings))
    used = pd.read_csv(folder / "metrics.csv")["train/level1/utilization"][0]
    assert used < 0.5
    assert f"warning: level 1 used only {used:.1%} of its codes this epoch" in capsys.readouterr().out
    train(make_config(epochs=1, name="silent", run={"usage_warning": 0.0}, **settings))
    assert "warning" not in capsys.readouterr().out


def test_warns_of_a_small_collapse_margin(make_config: Any, few_images: ImageData, capsys: pytest.CaptureFixture[str]) -> None:
    folder = train(make_config(ddcl={"tau_start": 50.0, "tau_end": 50.0}))
    steps = pd.read_csv(folder / "steps.csv")
    shown = capsys.readouterr().out
    for step in (1, 9):  # at the first step of each epoch, and no more than once
        margin = steps["level1/margin"][step - 1]
        assert margin < 1
        assert f"warning: step {step}: collapse margin T_c/T of level 1 is {margin:.2f} < 1" in shown
        assert (
            f"tau is 50 and ought to stay below {50 * margin:.3g}; lower ddcl.tau_start or ddcl.tau_end, or set ddcl.keep_margin" in shown
        )
    assert shown.count("warning: ") - shown.count("warning: level 1 used only") == 2
    assert shown.index("warning: step 1:") < shown.index("epoch 1:")
    train(make_config(epochs=1, name="silent"))
    assert "margin" not in capsys.readouterr().out


def test_the_strict_mode_keeps_the_margin(make_config: Any, few_images: ImageData, capsys: pytest.CaptureFixture[str]) -> None:
    folder = train(make_config(levels=2, ddcl={"tau_start": 50.0, "tau_end": 50.0, "keep_margin": 1.25}))
    steps = pd.read_csv(folder / "steps.csv")
    assert (steps[["level1/margin", "level2/margin"]] > 1.24).all(axis=None)
    assert "margin" not in capsys.readouterr().out


def test_progress_bar_shows_loss_psnr_and_use(make_config: Any) -> None:
    config = make_config(levels=2)
    module = TokenizerModule(Tokenizer(config.tokenizer_config()), config.optim, lr=1e-3, pixel_variance=0.06, total_steps=1)
    trainer, bar = L.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu"), TrainingBar()
    assert bar.get_metrics(trainer, module) == {"used1": "0%", "used2": "0%"}
    module.latest = {"loss": torch.tensor(0.5), "reconstruction": torch.tensor(0.01)}
    module.train_levels[0].usage.update(torch.arange(8))
    module.train_levels[1].usage.update(torch.zeros(3, dtype=torch.int64))
    assert bar.get_metrics(trainer, module) == {"loss": "0.5000", "psnr": "20.00", "used1": "50%", "used2": "6%"}


def test_a_run_with_bar_and_tensorboard(make_config: Any, few_images: ImageData, capsys: pytest.CaptureFixture[str]) -> None:
    folder: Path = train(make_config(epochs=1, run={"progress": True, "tensorboard": True}))
    assert list((folder / "tensorboard").glob("events*"))
    shown = capsys.readouterr()
    assert "psnr=" in shown.out + shown.err
    assert "used1=" in shown.out + shown.err

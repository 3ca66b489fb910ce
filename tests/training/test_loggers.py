"""What reaches TensorBoard, Weights & Biases and MLflow."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vqlab import VqlabError
from vqlab.data import ImageData
from vqlab.training import train
from vqlab.training.loggers import reconstruction_picture


def test_tensorboard_has_scalars_pictures_and_histograms_of_every_epoch(make_config: Any, few_images: ImageData) -> None:
    folder = train(make_config(run={"tensorboard": True}))
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"images": 0, "histograms": 0})
    events.Reload()
    table = pd.read_csv(folder / "metrics.csv")
    scalars = events.Scalars("test/hard/psnr")
    assert [event.step for event in scalars] == table["step"].tolist()
    assert [event.value for event in scalars] == pytest.approx(table["test/hard/psnr"].tolist(), rel=1e-5)
    assert [event.step for event in events.Images("reconstructions")] == table["step"].tolist()
    counts = events.Histograms("level1/counts")[-1].histogram_value
    assert counts.num == 16
    assert counts.sum == np.load(folder / "counts.npz")["level1"].sum()
    assert events.Histograms("level1/codes")[-1].histogram_value.num == 16 * 4


def test_a_plain_autoencoder_has_pictures_only(make_config: Any, few_images: ImageData) -> None:
    folder = train(make_config(quantizer="none", epochs=1, run={"tensorboard": True}))
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    assert events.Tags()["images"] == ["reconstructions"]
    assert events.Tags()["histograms"] == []


def test_picture_has_the_images_side_by_side_and_the_kinds_below_each_other() -> None:
    arrays = {name: np.random.default_rng(i).integers(0, 255, (3, 3, 4, 5)).astype(np.uint8) for i, name in enumerate(("hard", "original"))}
    picture = reconstruction_picture(arrays)
    assert picture.shape == (8, 15, 3)
    for row, name in enumerate(("original", "hard")):
        for n in range(3):
            np.testing.assert_array_equal(picture[4 * row : 4 * row + 4, 5 * n : 5 * n + 5], arrays[name][n].transpose(1, 2, 0))


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_library_is_an_error_before_anything_is_written(
    name: str, make_config: Any, few_images: ImageData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    config = make_config(run={name: True})
    with pytest.raises(VqlabError, match=rf"run.{name} needs .*pip install 'vqlab\[loggers\]'"):
        train(config)
    assert not Path(config.run.root).exists()


def test_mlflow_has_scalars_and_pictures(make_config: Any, few_images: ImageData, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = train(make_config(epochs=1, run={"mlflow": True}))
    client = mlflow.MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    (experiment,) = client.search_experiments(filter_string="name = 'vqlab'")
    (run,) = client.search_runs([experiment.experiment_id])
    psnr = pd.read_csv(folder / "metrics.csv")["test/hard/psnr"].iloc[-1]
    assert run.data.metrics["test/hard/psnr"] == pytest.approx(psnr)
    assert any(path.name.startswith("reconstructions") for path in (folder / "mlflow").rglob("*.png"))
    assert list((folder / "mlflow").rglob("level1-counts-*.png"))


def test_wandb_runs_offline(make_config: Any, few_images: ImageData, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="Weights & Biases is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    folder = train(make_config(epochs=1, run={"wandb": True}))
    assert list((folder / "wandb").glob("offline-run-*/*.wandb"))
    assert list((folder / "wandb").rglob("reconstructions*.png"))

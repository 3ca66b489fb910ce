"""Where figures and pictures of a training go besides the run folder: TensorBoard, Weights & Biases, MLflow."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from vqlab.config import RunConfig
from vqlab.optional import require
from vqlab.training.module import TokenizerModule
from vqlab.training.records import reconstruction_arrays

PROJECT = "vqlab"


def check_loggers(run: RunConfig) -> None:
    """VqlabError where a logger is asked for whose library is not installed."""
    for name in ("wandb", "mlflow"):
        if getattr(run, name):
            require(name, "loggers", f"run.{name}")


def build_loggers(run: RunConfig, folder: Path) -> list[Logger]:
    """The loggers that `run` asks for, writing below `folder` unless their own environment variables (WANDB_*, MLFLOW_*) say otherwise."""
    loggers: list[Logger] = []
    if run.tensorboard:
        loggers.append(TensorBoardLogger(folder, name="", version="tensorboard"))
    if run.wandb:
        loggers.append(WandbLogger(project=os.environ.get("WANDB_PROJECT", PROJECT), name=folder.name, save_dir=folder))
    if run.mlflow:
        address = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder.resolve() / 'mlflow.db'}"
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        loggers.append(MLFlowLogger(experiment, run_name=folder.name, tracking_uri=address, artifact_location=_artifacts(folder)))
    return loggers


def _artifacts(folder: Path) -> str | None:
    """Beside the figures, where these lie in the run folder; a server has its own place."""
    return None if os.environ.get("MLFLOW_TRACKING_URI") else (folder.resolve() / "mlflow").as_uri()


class PictureLogger(L.Callback):
    """After each epoch: reconstructions as one picture, and histograms of each level's code counts and code entries.

    preview: uint8 images (n, 3, h, w).  A logger that is none of the three gets nothing.
    """

    def __init__(self, preview: Tensor) -> None:
        self.preview = preview

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        assert isinstance(module, TokenizerModule)
        if not trainer.is_global_zero or not trainer.loggers:
            return
        picture = reconstruction_picture(reconstruction_arrays(module.tokenizer, self.preview))
        histograms = level_histograms(module)
        for logger in trainer.loggers:
            for kind, write in WRITERS.items():
                if isinstance(logger, kind):
                    write(logger, picture, histograms, trainer.global_step)


def reconstruction_picture(arrays: dict[str, NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Rows original, soft (where it exists) and hard, the images side by side: (rows h, n w, 3) uint8."""
    rows = [arrays[name].transpose(2, 0, 3, 1) for name in ("original", "soft", "hard") if name in arrays]  # (h, n, w, 3)
    return np.concatenate([row.reshape(row.shape[0], -1, 3) for row in rows])


def level_histograms(module: TokenizerModule) -> dict[str, NDArray[Any]]:
    """Values whose distribution is of interest: tokens of each code on the test split, and the entries of all codes, per level."""
    found: dict[str, NDArray[Any]] = {}
    levels = zip(module.tokenizer.quantizer.codebooks, module.evaluation.counts(), strict=True)
    for level, (book, counts) in enumerate(levels, 1):
        found[f"level{level}/counts"] = counts.cpu().numpy()
        found[f"level{level}/codes"] = book.codes.detach().float().cpu().numpy().flatten()
    return found


def _to_tensorboard(logger: Any, picture: NDArray[np.uint8], histograms: dict[str, NDArray[Any]], step: int) -> None:
    logger.experiment.add_image("reconstructions", picture, step, dataformats="HWC")
    for name, values in histograms.items():
        logger.experiment.add_histogram(name, values, step)


def _to_wandb(logger: Any, picture: NDArray[np.uint8], histograms: dict[str, NDArray[Any]], step: int) -> None:
    import wandb

    logger.log_image("reconstructions", [picture], step=step)
    logger.log_metrics({name: wandb.Histogram(values) for name, values in histograms.items()}, step=step)


def _to_mlflow(logger: Any, picture: NDArray[np.uint8], histograms: dict[str, NDArray[Any]], step: int) -> None:
    logger.experiment.log_image(logger.run_id, picture, key="reconstructions", step=step)
    for name, values in histograms.items():  # MLflow has no histograms: a figure instead
        figure = Figure(figsize=(4, 3), layout="constrained")
        axis = figure.add_subplot()
        axis.hist(values, bins=30)
        axis.set_xlabel(name)
        logger.experiment.log_figure(logger.run_id, figure, f"histograms/{name.replace('/', '-')}-{step}.png")


WRITERS: dict[type, Callable[[Any, NDArray[np.uint8], dict[str, NDArray[Any]], int], None]] = {
    TensorBoardLogger: _to_tensorboard,
    WandbLogger: _to_wandb,
    MLFlowLogger: _to_mlflow,
}

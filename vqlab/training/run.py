"""A whole training run: from a configuration to a run folder."""

from __future__ import annotations

import logging
import math
import os
import shlex
import sys
import warnings
from datetime import datetime
from pathlib import Path

import lightning as L
import torch
import yaml
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger

from vqlab.config import TrainConfig
from vqlab.data import BatchLoader, ImageData, load_images
from vqlab.errors import VqlabError
from vqlab.tokenizer import Tokenizer
from vqlab.training.callbacks import EpochRecorder, RandomState, SafeCheckpointIO, TrainingBar
from vqlab.training.module import TokenizerModule
from vqlab.training.records import RunFolder
from vqlab.training.runtime import Runtime, choose_runtime, tune_process

PREVIEW_IMAGES = 16


def pixel_variance(data: ImageData) -> float:
    """Variance of all training pixels on the scale of [0, 1]."""
    pixels = data.train.images.flatten()
    counts = torch.bincount(pixels.int(), minlength=256).double()
    values = torch.arange(256, dtype=torch.float64) / 255.0
    mean = (counts * values).sum() / counts.sum()
    return float((counts * (values - mean).square()).sum() / counts.sum())


def build_module(config: TrainConfig, data: ImageData, runtime: Runtime, total_steps: int) -> TokenizerModule:
    """A fresh tokenizer in its training module; the caller has seeded torch."""
    return TokenizerModule(
        Tokenizer(config.tokenizer_config()),
        config.optim,
        lr=config.lr,
        pixel_variance=pixel_variance(data),
        total_steps=total_steps,
        memory_format=runtime.memory_format,
    )


def train(config: TrainConfig, *, resume: bool = False, command: str | None = None, max_steps: int = -1) -> Path:
    """Train as `config` says and return the run folder (weights, tables, summary; see docs).

    resume: go on from the last checkpoint of the run `config.name`.  max_steps: stop early after so many optimizer steps.
    Raises VqlabError if the run exists already and is not to be resumed, or the data cannot be had.
    """
    tune_process(config.run.threads)
    _quiet_lightning()
    runtime = choose_runtime(config.run.device, config.run.precision)
    folder = _prepare_folder(config, resume, command)
    data = load_images(config.data, config.run.data_root)
    L.seed_everything(config.seed, workers=True, verbose=False)
    world_size, rank = _world()
    train_loader = BatchLoader(
        data.train,
        config.batch_size,
        shuffle=True,
        augment=True,
        seed=config.seed,
        drop_last=len(data.train) >= config.batch_size,
        rank=rank,
        world_size=world_size,
    )
    test_loader = BatchLoader(
        data.test,
        config.run.eval_batch_size,
        shuffle=False,
        augment=False,
        seed=config.seed,
        rank=rank,
        world_size=world_size,
    )
    steps_per_epoch = math.ceil(len(train_loader) / config.optim.accumulate)
    module = build_module(config, data, runtime, steps_per_epoch * config.epochs)
    recorder = EpochRecorder(folder, config.run.log_every, config.run.usage_warning, data.test.images[:PREVIEW_IMAGES])
    trainer = L.Trainer(
        accelerator=runtime.accelerator,
        devices="auto" if world_size == 1 and runtime.accelerator != "cpu" else max(1, world_size),
        precision=runtime.lightning_precision,  # type: ignore[arg-type]
        max_epochs=config.epochs,
        max_steps=max_steps,
        accumulate_grad_batches=config.optim.accumulate,
        callbacks=_callbacks(config, folder, recorder),
        logger=TensorBoardLogger(folder.path, name="", version="tensorboard") if config.run.tensorboard else False,
        plugins=[SafeCheckpointIO()],
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_progress_bar=config.run.progress,
        enable_model_summary=False,
        deterministic="warn" if runtime.accelerator == "cpu" else None,
    )
    print(
        f"run {folder.path}: {config.quantizer}, {module.tokenizer.num_parameters:,} parameters, {len(data.train):,} training images, "
        f"{trainer.accelerator.__class__.__name__.removesuffix('Accelerator').lower()}, {runtime.lightning_precision}",
        flush=True,
    )
    trainer.fit(module, train_loader, test_loader, ckpt_path=str(folder.checkpoint) if resume else None)
    if trainer.interrupted:
        raise VqlabError(f"interrupted; go on with: python train.py --resume {folder.path}")
    return folder.path


def load_run_config(path: Path) -> TrainConfig:
    """The configuration that a run folder was made with, under the name and place the folder has now."""
    file = path / "config.yaml"
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise VqlabError(f"cannot read {file}: {error}") from error
    if not isinstance(content, dict):
        raise VqlabError(f"{file} is not a run's configuration")
    content["name"] = path.name
    content["run"] = {**(content.get("run") or {}), "root": str(path.parent)}
    return TrainConfig.from_dict(content)


def _prepare_folder(config: TrainConfig, resume: bool, command: str | None) -> RunFolder:
    name = config.name or f"{config.quantizer}-k{'-'.join(map(str, config.codebook_sizes)) or 0}-{datetime.now():%Y%m%d-%H%M%S}"
    if Path(name).name != name or name in (".", ".."):
        raise VqlabError(f"name is one folder under run.root, not a path: {name!r}")
    folder = RunFolder(Path(config.run.root) / name, config, command or shlex.join(["python", *sys.argv]))
    if resume:
        if not folder.checkpoint.is_file():
            raise VqlabError(f"{folder.path} has no checkpoint to resume from ({folder.checkpoint} is missing)")
        return folder
    try:
        folder.path.mkdir(parents=True, exist_ok=False)
    except FileExistsError:
        raise VqlabError(f"{folder.path} exists already: choose another --name, or go on with --resume {folder.path}") from None
    except OSError as error:
        raise VqlabError(f"cannot create {folder.path}: {error}") from error
    folder.write_config()
    return folder


def _callbacks(config: TrainConfig, folder: RunFolder, recorder: EpochRecorder) -> list[Callback]:
    checkpoint = ModelCheckpoint(
        folder.checkpoint.parent,
        filename=folder.checkpoint.stem,
        save_top_k=1,
        monitor=None,
        save_on_train_epoch_end=True,
        enable_version_counter=False,
    )
    callbacks: list[Callback] = [recorder, RandomState(), checkpoint]
    if config.run.progress:
        callbacks.append(TrainingBar(refresh_rate=20))
    return callbacks


def _world() -> tuple[int, int]:
    """(world size, rank) as the launcher (torchrun, SLURM through it) has set them."""
    return int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))


def _quiet_lightning() -> None:
    """Only warnings that concern the user: data lives in memory, so worker processes are no advice to give."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*The number of training batches.*")
    warnings.filterwarnings("ignore", message=".*exists and is not empty.*")

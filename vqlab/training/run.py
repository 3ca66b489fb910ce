"""A whole training run: from a configuration to a run folder."""

from __future__ import annotations

import logging
import math
import shlex
import sys
import warnings
from contextlib import nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy

from vqlab.backbones import TimmEncoder
from vqlab.config import TrainConfig
from vqlab.data import BatchLoader, ImageData, load_images
from vqlab.errors import VqlabError
from vqlab.evaluation import check_sides
from vqlab.quantizers import NonFiniteError
from vqlab.storage import read_yaml
from vqlab.tokenizer import Tokenizer
from vqlab.training.callbacks import EpochRecorder, TrainingBar
from vqlab.training.checkpoint import LastCheckpoint, RandomState, SafeCheckpointIO, StoppedEarly, check_checkpoint, stop_on_signal
from vqlab.training.ema import WeightAverage
from vqlab.training.lock import only_training_in, remove_leftovers
from vqlab.training.loggers import PictureLogger, build_loggers, check_loggers
from vqlab.training.module import TokenizerModule
from vqlab.training.records import RunFolder
from vqlab.training.runtime import Runtime, World, choose_runtime, compile_networks, tune_process, world

PREVIEW_IMAGES = 16
CALIBRATION_IMAGES = 2048
VARIANCE_IMAGES = 100_000


def pixel_variance(data: ImageData) -> float:
    """Variance of the training pixels on the scale of [0, 1]."""
    pixels = data.train.sample(VARIANCE_IMAGES).flatten()
    counts = torch.bincount(pixels.int(), minlength=256).double()
    values = torch.arange(256, dtype=torch.float64) / 255.0
    mean = (counts * values).sum() / counts.sum()
    return float((counts * (values - mean).square()).sum() / counts.sum())


def build_module(config: TrainConfig, data: ImageData, runtime: Runtime, total_steps: int, resume: bool = False) -> TokenizerModule:
    """A fresh tokenizer in its training module; the caller has seeded torch. To resume, no weights to start from are needed."""
    tokenizer = Tokenizer(config.tokenizer_config())
    if isinstance(tokenizer.encoder, TimmEncoder) and not resume:
        tokenizer.encoder.initialise(config.timm.pretrained, config.timm.weights)
    return TokenizerModule(
        tokenizer,
        config.optim,
        lr=config.lr,
        pixel_variance=pixel_variance(data),
        total_steps=total_steps,
        memory_format=runtime.memory_format,
        calibration_images=data.train.sample(CALIBRATION_IMAGES),
        loss=config.loss,
    )


def train(config: TrainConfig, *, resume: bool = False, command: str | None = None, max_steps: int = -1) -> Path:
    """Train as `config` says and return the run folder (weights, tables, summary; see docs).

    resume: go on from the last checkpoint of the run `config.name`.  max_steps: stop early, with a checkpoint, after so many optimizer
    steps.
    Raises VqlabError, before anything is written, if the run exists already and is not to be resumed, its checkpoint cannot be used, the
    configuration contradicts itself or the data cannot be had. Raises KeyboardInterrupt, saying how to go on, after Ctrl-C.
    """
    tune_process(config.run.threads)
    _quiet_lightning()
    runtime, processes = choose_runtime(config.run.device, config.run.precision), world()
    folder = _run_folder(config, resume, command)
    check_loggers(config.run)
    tokenizer = Tokenizer(config.tokenizer_config())  # a setting that is refused is refused before anything is downloaded
    data = load_images(config.data, config.run.data_root, image_size=config.image_size, files=config.files)
    check_sides(data.train.image_size, tokenizer)
    L.seed_everything(config.seed, workers=True, verbose=False)
    train_loader, test_loader = _loaders(config, data, processes)
    steps_per_epoch = math.ceil(len(train_loader) / config.optim.accumulate)
    module = build_module(config, data, runtime, steps_per_epoch * config.epochs, resume)
    if config.run.compile:
        compile_networks(module.tokenizer.encoder, module.tokenizer.decoder)
    if resume:
        folder.check_data(data)
        check_checkpoint(folder.checkpoint, module, processes.size)
    elif processes.rank == 0:
        _create_folder(folder)
        folder.write_data(data)
    recorder = EpochRecorder(folder, config.run.log_every, config.run.usage_warning, data.test.sample(PREVIEW_IMAGES))
    held = only_training_in(folder.path) if processes.rank == 0 else nullcontext()
    with held, stop_on_signal(enabled=processes.size == 1) as request:
        if resume and processes.rank == 0:
            remove_leftovers(folder.path)
        checkpoint = LastCheckpoint(folder.checkpoint, train_loader, config.run.checkpoint_every, max_steps, request)
        trainer = L.Trainer(
            accelerator=runtime.accelerator,
            devices=processes.local_size,
            num_nodes=processes.size // processes.local_size,
            strategy=DDPStrategy(timeout=timedelta(seconds=config.run.timeout)) if processes.size > 1 else "auto",
            precision=runtime.lightning_precision,  # type: ignore[arg-type]
            max_epochs=config.epochs,
            accumulate_grad_batches=config.optim.accumulate,
            callbacks=_callbacks(config, recorder, checkpoint),
            logger=build_loggers(config.run, folder.path),
            plugins=[SafeCheckpointIO()],
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            enable_progress_bar=config.run.progress,
            enable_model_summary=False,
            deterministic="warn" if runtime.accelerator == "cpu" else None,
        )
        if processes.rank == 0:
            print(
                f"run {folder.path}: {config.quantizer}, {module.tokenizer.num_parameters:,} parameters, {len(data.train):,} training "
                f"images, {trainer.accelerator.__class__.__name__.removesuffix('Accelerator').lower()}, {runtime.lightning_precision}",
                flush=True,
            )
            if data.skipped:
                print(
                    f"warning: {len(data.skipped)} images cannot be read and are left out; {folder.path / 'data.json'} lists them",
                    flush=True,
                )
        try:
            trainer.fit(module, train_loader, test_loader, ckpt_path=str(folder.checkpoint) if resume else None)
        except StoppedEarly:
            if request.asked:
                raise KeyboardInterrupt(_how_to_go_on(folder)) from None
        except SystemExit:  # what Lightning makes of an interrupt
            raise KeyboardInterrupt(_how_to_go_on(folder)) from None
        except (VqlabError, NonFiniteError):
            raise
        except Exception as error:
            if not resume or recorder.took_a_step:
                raise
            # Its weights fit, other parts of it do not; nothing has been written yet.
            raise VqlabError(f"cannot go on from {folder.checkpoint}: {type(error).__name__}: {' '.join(str(error).split())}") from error
    if processes.rank == 0:
        folder.write_data(data)  # files may have turned out to be damaged on the way
    return folder.path


def load_run_config(path: Path) -> TrainConfig:
    """The configuration that a run folder was made with, under the name and place the folder has now."""
    file = path / "config.yaml"
    content = read_yaml(file)
    if not isinstance(content, dict) or not isinstance(content.get("run") or {}, dict):
        raise VqlabError(f"{file} is not a run's configuration")
    content["name"] = path.name
    content["run"] = {**(content.get("run") or {}), "root": str(path.parent)}
    config = TrainConfig.from_dict(content)
    added = _added_settings(config.resolved().to_dict(), content)
    if added:
        print(
            f"warning: {file} was written before these settings existed; they take today's defaults: {', '.join(added)}. "
            "Write others into the file if the run was started with them",
            file=sys.stderr,
            flush=True,
        )
    return config


def _added_settings(today: dict[str, Any], saved: dict[str, Any], prefix: str = "") -> list[str]:
    """Settings with their values that a saved configuration lacks, such as ["optim.accumulate = 1"]."""
    added = []
    for name, value in today.items():
        if isinstance(value, dict):
            added += _added_settings(value, saved.get(name) or {}, f"{prefix}{name}.")
        elif name not in saved:
            added.append(f"{prefix}{name} = {value}")
    return added


def _run_folder(config: TrainConfig, resume: bool, command: str | None) -> RunFolder:
    """The folder of the run, checked but not created yet."""
    name = config.name or f"{config.quantizer}-k{'-'.join(map(str, config.codebook_sizes)) or 0}-{datetime.now():%Y%m%d-%H%M%S}"
    if Path(name).name != name or name in (".", "..") or "\0" in name:
        raise VqlabError(f"name is one folder under run.root, not a path: {name!r}")
    folder = RunFolder(Path(config.run.root) / name, config, command or shlex.join(["python", *sys.argv]))
    if resume and not folder.checkpoint.is_file():
        raise VqlabError(f"{folder.path} has no checkpoint to resume from ({folder.checkpoint} is missing)")
    if not resume and world().rank == 0 and folder.path.exists():
        raise VqlabError(_taken(folder))
    return folder


def _create_folder(folder: RunFolder) -> None:
    try:
        folder.path.mkdir(parents=True, exist_ok=False)
    except FileExistsError:
        raise VqlabError(_taken(folder)) from None
    except OSError as error:
        raise VqlabError(f"cannot create {folder.path}: {error}") from error
    folder.write_config()


def _taken(folder: RunFolder) -> str:
    if not folder.checkpoint.is_file():
        return f"{folder.path} exists already, without a checkpoint to go on from: remove it, or choose another --name"
    return f"{folder.path} exists already: choose another --name, or go on with --resume {folder.path}"


def _how_to_go_on(folder: RunFolder) -> str:
    if not folder.checkpoint.is_file():
        return "interrupted before the first checkpoint"
    return f"interrupted; go on with: python train.py --resume {folder.path}"


def _loaders(config: TrainConfig, data: ImageData, processes: World) -> tuple[BatchLoader, BatchLoader]:
    """Batches of the training split, shuffled and augmented, and of the test split, for this process."""
    train_loader = BatchLoader(
        data.train,
        config.batch_size,
        shuffle=True,
        augment=True,
        seed=config.seed,
        drop_last=len(data.train) >= config.batch_size * processes.size,
        rank=processes.rank,
        world_size=processes.size,
    )
    test_loader = BatchLoader(
        data.test,
        config.run.eval_batch_size,
        shuffle=False,
        augment=False,
        seed=config.seed,
        rank=processes.rank,
        world_size=processes.size,
    )
    return train_loader, test_loader


def _callbacks(config: TrainConfig, recorder: EpochRecorder, checkpoint: LastCheckpoint) -> list[Callback]:
    callbacks: list[Callback] = [recorder, PictureLogger(recorder.preview), RandomState(), checkpoint]
    if config.optim.ema_decay:
        callbacks.insert(2, WeightAverage(config.optim.ema_decay))  # after what saves and shows the tokenizer, before the checkpoint
    if config.run.progress:
        callbacks.append(TrainingBar(refresh_rate=20))
    return callbacks


def _quiet_lightning() -> None:
    """Only warnings that concern the user: data lives in memory, so worker processes are no advice to give."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*The number of training batches.*")
    warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated.*")

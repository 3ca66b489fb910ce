"""Checkpoints: written whole or not at all, checked before anything is loaded, and left behind by every way to stop."""

from __future__ import annotations

import pickle
import signal
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor

from vqlab.data import BatchLoader
from vqlab.distributed import gather_bytes, own_rank
from vqlab.errors import VqlabError
from vqlab.migrate import migrate
from vqlab.storage import write_atomically
from vqlab.training.module import TokenizerModule

#: What a checkpoint of a run holds at least.
KEYS = ("state_dict", "optimizer_states", "lr_schedulers", "loops", "callbacks")


class SafeCheckpointIO(TorchCheckpointIO):
    """Checkpoints that replace the previous one only when they are complete on disk, and that load nothing but plain types and tensors."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        try:
            write_atomically(Path(path), lambda temporary: torch.save(checkpoint, temporary))
        except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
            raise VqlabError(f"cannot write checkpoint {path}: {_first_line(error)}; the previous one is intact") from error

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        try:
            _check_archive(Path(path))
            content = torch.load(path, map_location=map_location or "cpu", weights_only=True)
        except FileNotFoundError as error:
            raise VqlabError(f"there is no checkpoint {path}") from error
        except Exception as error:  # a truncated or foreign file fails in many ways inside torch.load
            # torch's message explains how to load unsafe pickles, which is no help here.
            reason = "it holds more than tensors and plain types" if isinstance(error, pickle.UnpicklingError) else _first_line(error)
            raise VqlabError(f"cannot read checkpoint {path}: {type(error).__name__}: {reason}") from error
        if not isinstance(content, dict) or not isinstance(content.get("state_dict"), dict):
            return content  # not of a run; `check_checkpoint` says so
        try:
            # The first version did not name itself.
            return {**content, "state_dict": migrate(content["state_dict"], content.get("format_version", 1))}
        except ValueError as error:
            raise VqlabError(f"{path}: {error}") from error


def _check_archive(path: Path) -> None:
    """ValueError or BadZipFile for an archive whose bytes are not those that were written; torch itself does not look at its checksums."""
    with zipfile.ZipFile(path) as archive:
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise ValueError("it holds compressed entries, which torch does not write")
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"its entry {damaged} is damaged")


def check_checkpoint(path: Path, module: TokenizerModule, processes: int = 1) -> None:
    """VqlabError naming the file and the field unless `path` is a checkpoint that fits `module` and the processes; changes nothing."""
    content = SafeCheckpointIO().load_checkpoint(path)
    missing = [key for key in KEYS if not isinstance(content, dict) or key not in content]
    if missing or not isinstance(content["state_dict"], dict):
        raise VqlabError(f"{path} is not the checkpoint of a vqlab run: it lacks {', '.join(missing) or 'weights'}")
    saved, own = content["state_dict"], module.state_dict()
    for name in sorted(own.keys() | saved.keys()):
        if name not in saved:
            raise VqlabError(f"{path} lacks {name!r}, which the run's configuration asks for")
        if name not in own:
            raise VqlabError(f"{path} holds {name!r}, which the run's configuration does not know")
        shapes = [tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__ for x in (saved[name], own[name])]
        if shapes[0] != shapes[1]:
            raise VqlabError(f"{path}: {name!r} has shape {shapes[0]}, the run's configuration asks for {shapes[1]}")
    callbacks = content["callbacks"]
    kept = callbacks.get(LastCheckpoint.__name__) if isinstance(callbacks, dict) else None
    if not isinstance(kept, dict):
        raise VqlabError(f"{path} is not the checkpoint of a vqlab run: it lacks the place in the data")
    before = kept.get("processes", processes)  # the first format did not say
    if before != processes:
        raise VqlabError(f"{path} was written by a training on {before} processes, which {processes} cannot go on with exactly")


class RandomState(L.Callback):
    """Saves and restores torch's global random state, of each process its own: k-means starts and prefixes of levels draw from it."""

    def __init__(self) -> None:
        self._restored: Tensor | None = None

    def state_dict(self) -> dict[str, Any]:
        return {"torch": gather_bytes(torch.get_rng_state())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        states = state["torch"]
        # One state alone: of the first format, which kept that of one process.
        self._restored = states if isinstance(states, Tensor) else states[own_rank()]

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if self._restored is not None:
            torch.set_rng_state(self._restored.cpu())
            self._restored = None


class StopRequest:
    """Whether somebody has asked the training to stop at the end of the running step."""

    def __init__(self) -> None:
        self.asked = False


@contextmanager
def stop_on_signal(enabled: bool = True) -> Iterator[StopRequest]:
    """The first Ctrl-C or SIGTERM asks to stop after the running step, where a checkpoint can be written; a second one acts at once.

    Does nothing where it is not `enabled`, or outside the main thread, which alone receives signals.
    """
    request = StopRequest()
    if not enabled or threading.current_thread() is not threading.main_thread():
        yield request
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def ask(number: int, frame: FrameType | None) -> None:
        request.asked = True
        restore()
        print("\nstopping after this step; once more stops at once", file=sys.stderr, flush=True)

    for number in previous:
        signal.signal(number, ask)
    try:
        yield request
    finally:
        restore()


class StoppedEarly(Exception):
    """The training has been left between two optimizer steps; a checkpoint of that moment exists."""


class LastCheckpoint(Checkpoint):
    """Keeps one checkpoint: of the end of the latest epoch, of every so many steps, or of the step at which the training was stopped.

    path: the file.  loader: the training batches, whose place is kept too.  every: optimizer steps between checkpoints within an epoch, 0
    for none.  max_steps: stop after so many optimizer steps, -1 for no limit.  request: asks for a stop (see `stop_on_signal`).
    Raises StoppedEarly out of `Trainer.fit` after a stop.
    """

    def __init__(self, path: Path, loader: BatchLoader, every: int, max_steps: int, request: StopRequest) -> None:
        self.path, self.loader, self.every, self.max_steps, self.request = path, loader, every, max_steps, request

    def state_dict(self) -> dict[str, Any]:
        # Lightning restores the place of a loader in the middle of an epoch only; after one it would start with the first epoch's order.
        return {"loader": self.loader.state_dict(), "processes": self.loader.world_size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state["loader"])

    def _due(self, trainer: L.Trainer) -> bool:
        return self.request.asked or 0 <= self.max_steps <= trainer.global_step

    def on_train_batch_end(self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        # Gradients of a half accumulated step are not part of a checkpoint; a finished epoch is evaluated first.
        if trainer.is_last_batch or not ends_step(trainer, batch_idx):
            return
        stop = self._due(trainer)
        if stop or (self.every and trainer.global_step % self.every == 0):
            trainer.save_checkpoint(self.path)
        if stop:
            raise StoppedEarly

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        trainer.save_checkpoint(self.path)

    def on_train_epoch_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if self._due(trainer):  # the checkpoint is that of the epoch before
            raise StoppedEarly


def ends_step(trainer: L.Trainer, batch_idx: int) -> bool:
    """Whether an optimizer step was taken on this micro-batch."""
    return trainer.is_last_batch or (batch_idx + 1) % trainer.accumulate_grad_batches == 0


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]

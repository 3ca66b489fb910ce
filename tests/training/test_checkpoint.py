"""Checkpoints: whole or not at all, checked before use; stopping between two steps."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vqlab.data import ImageData
from vqlab.errors import VqlabError
from vqlab.training import load_run_config, train
from vqlab.training.checkpoint import SafeCheckpointIO, stop_on_signal

Snapshot = Callable[[Path], dict[str, bytes]]
save = torch.save


def half(content: Any, path: Path) -> None:
    """Writes the first half of a checkpoint, as a process does that is killed there."""
    save(content, path)
    os.truncate(path, path.stat().st_size // 2)


def failing(error: BaseException) -> Callable[[Any, Path], None]:
    def write(content: Any, path: Path) -> None:
        half(content, path)
        raise error

    return write


# -- writing ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("PytorchStreamWriter failed writing file")])
def test_failed_write_keeps_the_previous_checkpoint(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, io = tmp_path / "last.ckpt", SafeCheckpointIO()
    io.save_checkpoint({"step": 1}, path)
    monkeypatch.setattr(torch, "save", failing(error))
    with pytest.raises(VqlabError, match=r"cannot write checkpoint .*the previous one is intact"):
        io.save_checkpoint({"step": 2}, path)
    assert io.load_checkpoint(path) == {"step": 1}
    assert os.listdir(tmp_path) == ["last.ckpt"]


def test_full_disk(tmp_path: Path) -> None:
    """What torch really raises where no more can be written: the size of files is limited in a child process."""
    path, io = tmp_path / "last.ckpt", SafeCheckpointIO()
    io.save_checkpoint({"step": torch.ones(1)}, path)

    def child() -> int:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        try:
            io.save_checkpoint({"step": torch.ones(100_000)}, path)
        except VqlabError:
            return 0
        return 1

    assert in_child(child) == 0
    assert torch.equal(io.load_checkpoint(path)["step"], torch.ones(1))
    assert os.listdir(tmp_path) == ["last.ckpt"]


def test_killed_while_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, io = tmp_path / "last.ckpt", SafeCheckpointIO()
    io.save_checkpoint({"step": 1}, path)

    def killed(content: Any, temporary: Path) -> None:
        half(content, temporary)
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(torch, "save", killed)
    assert in_child(lambda: io.save_checkpoint({"step": 2}, path)) == -signal.SIGKILL
    monkeypatch.undo()
    assert io.load_checkpoint(path) == {"step": 1}
    io.save_checkpoint({"step": 3}, path)  # what the killed process left is not in the way
    assert io.load_checkpoint(path) == {"step": 3}


def in_child(action: Callable[[], Any]) -> int:
    """Exit code of a forked process that runs `action`; minus the signal's number if one ended it."""
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            code = action() or 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_training_whose_checkpoint_fails_can_go_on_from_the_one_before(
    error: BaseException, make_config: Any, few_images: ImageData, monkeypatch: pytest.MonkeyPatch, comparable: Any
) -> None:
    whole = train(make_config(name="whole"))
    writes = []

    def second_fails(content: Any, path: Path) -> None:
        writes.append(path)
        (failing(error) if len(writes) == 2 else save)(content, path)

    folder = whole.parent / "parts"
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", second_fails)
        with pytest.raises((VqlabError, KeyboardInterrupt), match=r"intact|go on with"):
            train(make_config(name="parts"))
    assert torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] == 8
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["last.ckpt"]
    train(load_run_config(folder), resume=True)
    assert comparable(folder / "checkpoints" / "last.ckpt") == comparable(whole / "checkpoints" / "last.ckpt")


def test_tables_that_cannot_be_written(make_config: Any, few_images: ImageData, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vqlab.training.records.write_table", full)
    with pytest.raises(VqlabError, match=r"cannot write to .*run: .*No space left"):
        train(make_config())


# -- reading ------------------------------------------------------------------------------------------------------------------------


class Foreign:
    """A class of other software."""


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[:64] = bytes(64)
    path.write_bytes(content)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (truncated, "cannot read checkpoint"),
    "empty": (lambda path: path.write_bytes(b""), "cannot read checkpoint"),
    "text": (lambda path: path.write_text("once upon a time"), "cannot read checkpoint"),
    "no longer a zip file": (flipped, "cannot read checkpoint"),
    "pickled object": (lambda path: path.write_bytes(pickle.dumps({"model": Foreign()})), "cannot read checkpoint"),
    "saved object": (lambda path: save({"state_dict": Foreign()}, path), "more than tensors and plain types"),
    "plain weights": (lambda path: save({"weight": torch.ones(2)}, path), "is not the checkpoint of a vqlab run"),
    "a list": (lambda path: save([1, 2], path), "is not the checkpoint of a vqlab run"),
    "other software": (
        lambda path: save(
            {"state_dict": {"w": torch.ones(1)}, "optimizer_states": [], "lr_schedulers": [], "loops": {}, "callbacks": {}}, path
        ),
        "'tokenizer.decoder|'train_|'w'",
    ),
}


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_checkpoint(damage: str, make_config: Any, few_images: ImageData, snapshot: Snapshot) -> None:
    folder = train(make_config(run={"tensorboard": True}), max_steps=5)
    spoil, message = DAMAGES[damage]
    spoil(folder / "checkpoints" / "last.ckpt")
    before = snapshot(folder)
    with pytest.raises(VqlabError, match=message) as caught:
        train(load_run_config(folder), resume=True)
    assert "\n" not in str(caught.value)
    assert "last.ckpt" in str(caught.value)
    assert snapshot(folder) == before


def test_missing_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(VqlabError, match="there is no checkpoint"):
        SafeCheckpointIO().load_checkpoint(tmp_path / "nothing.ckpt")


def test_checkpoint_holds_plain_types_only(make_config: Any, few_images: ImageData) -> None:
    folder = train(make_config(), max_steps=5)
    content = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)  # refuses anything else
    assert {"EpochRecorder", "RandomState", "LastCheckpoint"} <= set(content["callbacks"])


# -- stopping -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_asks_second_interrupts(number: int) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with stop_on_signal() as request:
        assert not request.asked
        signal.raise_signal(number)
        assert request.asked
        assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def test_interrupts_are_left_alone_where_not_enabled_or_not_in_the_main_thread() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []
    with stop_on_signal(enabled=False) as request:
        assert signal.getsignal(signal.SIGINT) is before
        assert not request.asked

    def elsewhere() -> None:
        with stop_on_signal():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [before]

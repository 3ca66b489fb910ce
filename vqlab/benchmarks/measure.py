"""One candidate in its own process: builds itself on demand, then answers with seconds or with peak memory."""

from __future__ import annotations

import ctypes
import multiprocessing
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from vqlab.benchmarks.candidates import CANDIDATES, Layer
from vqlab.training.runtime import tune_process

MIB = 1 << 20


@dataclass(frozen=True)
class Case:
    """n tokens, d dimensions, k codes."""

    n: int
    d: int
    k: int


@dataclass(frozen=True)
class Warmed:
    """What the first training step and the first inference took: seconds, and MiB above the inputs (None where the system cannot tell)."""

    train_s: float
    ids_s: float
    train_mib: float | None
    ids_mib: float | None


class CandidateError(RuntimeError):
    """A candidate's process failed; the message is its own."""


class CandidateProcess:
    """A candidate in a process of its own; `close` ends it."""

    def __init__(self, name: str, case: Case, threads: int, seed: int = 0) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, name, case, threads, seed), daemon=True)
        self._process.start()
        theirs.close()

    def warm_up(self) -> Warmed:
        """The first step, whose peak memory is taken. CandidateError if it fails."""
        answer = self._ask("warm up")
        assert isinstance(answer, Warmed)
        return answer

    def seconds(self, what: str, at_least: float = 0.1) -> list[float]:
        """Seconds of each of one or more repetitions of "train" or "ids", together lasting at least so long."""
        answer = self._ask((what, at_least))
        assert isinstance(answer, list)
        return answer

    def _ask(self, question: object) -> object:
        try:
            self._connection.send(question)
            answer = self._connection.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._process.join(5)
            raise CandidateError(f"its process ended with code {self._process.exitcode}: out of memory?") from None
        if isinstance(answer, Exception):
            raise CandidateError(f"{type(answer).__name__}: {answer}")
        return answer

    def close(self) -> None:
        self._connection.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _status(field: str) -> float | None:
    """A field of /proc/self/status in MiB; None where there is no such file."""
    try:
        found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) / 1024 if found else None


def peak_above(action: Callable[[], object]) -> float | None:
    """MiB of resident memory that `action` reaches above what the process holds before (Linux; None elsewhere)."""
    _return_free_memory()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    except OSError:
        action()
        return None
    before = _status("VmRSS")
    action()
    peak = _status("VmHWM")
    return None if before is None or peak is None else max(0.0, peak - before)


def _return_free_memory() -> None:
    """Free blocks that the allocator keeps would hide what the next action needs."""
    if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _serve(connection: Connection, name: str, case: Case, threads: int, seed: int) -> None:
    tune_process(threads)
    torch.manual_seed(seed)
    try:
        build = CANDIDATES[name].build
        _run_once(build(case.d, 16), torch.randn(32, case.d))  # libraries and their thread pools
        layer, z = build(case.d, case.k), torch.randn(case.n, case.d)
        z.requires_grad_()
    except Exception as error:
        _answer_all(connection, error)
        return

    def train() -> None:
        for x in (z, *layer.module.parameters()):
            x.grad = None
        layer.loss(z).backward()

    @torch.no_grad()
    def ids() -> None:
        layer.ids(z)

    actions: dict[str, Callable[[], None]] = {"train": train, "ids": ids}
    while True:
        try:
            question = connection.recv()
        except EOFError:
            return
        try:
            connection.send(_warm_up(actions) if question == "warm up" else _repeat(actions[question[0]], question[1]))
        except Exception as error:
            connection.send(RuntimeError(str(error).partition("\n")[0]))


def _run_once(layer: Layer, z: torch.Tensor) -> None:
    layer.loss(z.requires_grad_()).backward()
    with torch.no_grad():
        layer.ids(z)


def _answer_all(connection: Connection, error: Exception) -> None:
    """Tell why there is nothing to measure, whatever is asked."""
    connection.recv()
    connection.send(RuntimeError(str(error).partition("\n")[0]))


def _warm_up(actions: dict[str, Callable[[], None]]) -> Warmed:
    taken: dict[str, float] = {}

    def timed(what: str) -> Callable[[], None]:
        return lambda: taken.__setitem__(what, _seconds(actions[what]))

    ids_mib, train_mib = peak_above(timed("ids")), peak_above(timed("train"))
    return Warmed(taken["train"], taken["ids"], train_mib, ids_mib)


def _repeat(action: Callable[[], None], at_least: float) -> list[float]:
    seconds = [_seconds(action)]
    while sum(seconds) < at_least:
        seconds.append(_seconds(action))
    return seconds

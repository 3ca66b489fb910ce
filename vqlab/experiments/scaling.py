"""Time and memory of the readout against self-attention over the number of tokens, with fitted exponents."""

from __future__ import annotations

import statistics
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vqlab.experiments.report import Claim, Report, Settings
from vqlab.readout import DDCLReadout
from vqlab.results.style import draw, panels, save, styled

DIM, PROTOTYPES = 64, 16
LENGTHS = tuple(2**p for p in range(6, 17))
QUICK_LENGTHS = (64, 256, 1024, 4096)
#: A length is left out where a pass would take longer than this, in seconds, or hold more than this, in bytes, growing by squares.
LONGEST, LARGEST = 12.0, 4 << 30


@dataclass(frozen=True)
class Measurement:
    """One row: seconds of a forward and backward pass (median), and the most bytes it held at once."""

    method: str
    tokens: int
    seconds: float
    peak_bytes: int


class SelfAttention(nn.Module):
    """One head of self-attention, (1, n, dim) -> (1, n, dim). fused: the kernel that never stores the n x n matrix, else the formula."""

    def __init__(self, dim: int, fused: bool) -> None:
        super().__init__()
        self.project, self.fused = nn.Linear(dim, 3 * dim), fused

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.project(x).chunk(3, -1)
        if self.fused:
            return nn.functional.scaled_dot_product_attention(query[:, None], key[:, None], value[:, None])[:, 0]
        return (query @ key.transpose(1, 2) * x.shape[-1] ** -0.5).softmax(-1) @ value


def _methods() -> dict[str, Callable[[Tensor], Tensor]]:
    readout = DDCLReadout(DIM, PROTOTYPES, init="random")

    def read(x: Tensor) -> Tensor:
        out = readout(x)
        return out.pooled.sum() + out.loss

    matrix, fused = SelfAttention(DIM, fused=False), SelfAttention(DIM, fused=True)
    return {
        f"DDCL readout, K = {PROTOTYPES}": read,
        "self-attention, fused": lambda x: fused(x).sum(),
        "self-attention, with its matrix": lambda x: matrix(x).sum(),
    }


class PeakMemory(TorchDispatchMode):
    """Within it, `peak` is the most bytes held at once by tensors that were made within it."""

    def __init__(self) -> None:
        super().__init__()
        self.held = self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for tensor in _tensors((args, kwargs)):
            self._watch(tensor, count=False)  # if it is new here, it was made before
        out = func(*args, **kwargs)
        for tensor in _tensors(out):
            self._watch(tensor, count=True)
        return out

    def _watch(self, tensor: Tensor, count: bool) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes:
            return
        self._sizes[key] = storage.nbytes() if count else 0
        self.held += self._sizes[key]
        self.peak = max(self.peak, self.held)
        weakref.finalize(storage, self._release, key)

    def _release(self, key: int) -> None:
        self.held -= self._sizes.pop(key)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def peak_bytes(action: Callable[[], object]) -> int:
    """The most bytes that tensors made by `action` hold at once; what kernels use inside is not seen."""
    with PeakMemory() as memory:
        action()
    return memory.peak


def measure(lengths: tuple[int, ...], repeats: int) -> list[Measurement]:
    """Forward and backward of every method at every length, shortest first; a method stops where the next length would be too much."""
    torch.manual_seed(0)
    found = []
    for name, method in _methods().items():
        for n in lengths:
            x = torch.randn(1, n, DIM, requires_grad=True)

            def step(x: Tensor = x, method: Callable[[Tensor], Tensor] = method) -> None:
                x.grad = None
                method(x).backward()

            step()  # warm-up
            times = []
            for _ in range(repeats):
                start = time.perf_counter()
                step()
                times.append(time.perf_counter() - start)
            found.append(Measurement(name, n, statistics.median(times), peak_bytes(step)))
            if 4 * found[-1].seconds > LONGEST or 4 * found[-1].peak_bytes > LARGEST:
                break
    return found


def exponent(lengths: list[int], values: list[float]) -> float:
    """Slope of log value over log length at the longer half of the lengths, where constant costs no longer show."""
    half = max(2, len(lengths) // 2)
    return float(np.polyfit(np.log(lengths[-half:]), np.log(values[-half:]), 1)[0])


def run(settings: Settings) -> Report:
    """Measure, fit exponents, draw."""
    rows = measure(QUICK_LENGTHS if settings.quick else LENGTHS, 3)
    report = Report("scaling", "time and memory against self-attention")
    report.notes.append(f"one sequence, {DIM} channels, float32, forward and backward, {torch.get_num_threads()} CPU thread(s)")
    report.notes.append(
        f"memory: the most bytes of tensors held at once, beyond the input; missing rows would exceed {LONGEST:g} s or {LARGEST >> 30} GiB"
    )
    names = list(dict.fromkeys(row.method for row in rows))
    table = []
    for n in dict.fromkeys(row.tokens for row in rows):
        line: dict[str, object] = {"tokens": n}
        for name in names:
            own = next((row for row in rows if (row.method, row.tokens) == (name, n)), None)
            line[f"{name}: ms"] = f"{own.seconds * 1e3:.2f}" if own else ""
            line[f"{name}: MiB"] = f"{own.peak_bytes / 2**20:.2f}" if own else ""
        table.append(line)
    report.tables["Time and memory"] = pd.DataFrame(table)
    fitted = {}
    for name in names:
        series = [row for row in rows if row.method == name]
        lengths = [row.tokens for row in series]
        fitted[name] = (exponent(lengths, [row.seconds for row in series]), exponent(lengths, [float(row.peak_bytes) for row in series]))
    report.tables["Fitted exponents (cost ~ n^x, longer half)"] = pd.DataFrame(
        [{"method": name, "time": f"{t:.2f}", "memory": f"{m:.2f}"} for name, (t, m) in fitted.items()]
    )
    report.figures.append(save(_figure(rows, names), settings.out / "scaling" / "scaling.png"))
    seconds, memory = fitted[names[0]]
    report.claims.append(
        Claim(
            "linear cost in the number of tokens",
            "O(nK) against O(n^2)",
            f"readout: time n^{seconds:.2f}, memory n^{memory:.2f}; fused self-attention: time n^{fitted[names[1]][0]:.2f}",
            "agrees" if max(seconds, memory) < 1.2 else "disagrees",
        )
    )
    return report


@styled
def _figure(rows: list[Measurement], names: list[str]) -> Figure:
    figure, (left, right) = panels(2)
    for name in names:
        own = [row for row in rows if row.method == name]
        n = np.array([row.tokens for row in own])
        draw(left, n, [row.seconds * 1e3 for row in own], marker="o", label=name)
        draw(right, n, [row.peak_bytes / 2**20 for row in own], marker="o", label=name)
    for axis, label in ((left, "ms, forward and backward"), (right, "MiB at once")):
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel("tokens")
        axis.set_ylabel(label)
    left.legend(fontsize=7)
    return figure

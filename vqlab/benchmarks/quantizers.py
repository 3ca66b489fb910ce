"""Time and memory of quantizers over tokens, dimensions and codes, by themselves: `vqlab bench quantizers`.

Each candidate runs in its own process. For every case all candidates are warmed up, then repeated in turn, round after round, so that a
machine whose speed drifts treats all alike. Reported are medians over all repetitions, and ratios of medians.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from vqlab.benchmarks.candidates import CANDIDATES
from vqlab.benchmarks.measure import CandidateError, CandidateProcess, Case, Warmed
from vqlab.errors import VqlabError

TOKENS = (4096, 65536)
DIMS = (8, 16, 64)
CODES = (512, 4096, 16384, 65536, 262144)
#: Name of the candidate whose time and memory all ratios are relative to.
BASIS = "ddcl"


@dataclass(frozen=True)
class Measurement:
    """One candidate in one case: medians of a training step (forward and backward) and of ids only; MiB are peaks above the inputs.

    skipped: why there are no figures, else empty.
    """

    candidate: str
    n: int
    d: int
    k: int
    train_ms: float | None = None
    ids_ms: float | None = None
    train_mib: float | None = None
    ids_mib: float | None = None
    skipped: str = ""


@dataclass(frozen=True)
class Growth:
    """Exponents fitted over all cases of a candidate: training time ~ N^time_n K^time_k, training memory ~ (N + K)^memory; None where
    fewer than two values of the quantity were measured."""

    candidate: str
    time_n: float | None
    time_k: float | None
    memory: float | None


@dataclass(frozen=True)
class QuantizerBenchmark:
    """All rows, the fitted growth, and how it was measured."""

    rows: list[Measurement]
    growth: list[Growth]
    threads: int
    rounds: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def row(self, candidate: str, n: int, d: int, k: int) -> Measurement | None:
        """The row of one candidate in one case; None if it is not there."""
        return next((r for r in self.rows if (r.candidate, r.n, r.d, r.k) == (candidate, n, d, k)), None)

    def table(self) -> str:
        """Markdown: every row with its ratios to DDCL, then the growth."""
        lines = [
            "| quantizer | N | d | K | train ms | x DDCL | train MiB | ids ms | x DDCL | ids MiB |",
            "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        ]
        for r in self.rows:
            head = f"| {CANDIDATES[r.candidate].title} | {r.n} | {r.d} | {r.k} |"
            if r.skipped:
                lines.append(f"{head} skipped: {r.skipped} | | | | | |")
                continue
            basis = self.row(BASIS, r.n, r.d, r.k)
            cells = [
                _cell(r.train_ms, 1),
                _cell(_ratio(r.train_ms, basis.train_ms if basis else None), 2),
                _cell(r.train_mib, 1),
                _cell(r.ids_ms, 1),
                _cell(_ratio(r.ids_ms, basis.ids_ms if basis else None), 2),
                _cell(r.ids_mib, 1),
            ]
            lines.append(f"{head} {' | '.join(cells)} |")
        lines += ["", "| quantizer | time ~ N^ | time ~ K^ | memory ~ (N+K)^ |", "|---|---:|---:|---:|"]
        for g in self.growth:
            lines.append(f"| {CANDIDATES[g.candidate].title} | {_cell(g.time_n, 2)} | {_cell(g.time_k, 2)} | {_cell(g.memory, 2)} |")
        return "\n".join(lines)


def _cell(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _ratio(value: float | None, basis: float | None) -> float | None:
    return value / basis if value is not None and basis else None


def fit_growth(rows: Sequence[Measurement]) -> list[Growth]:
    """Least squares on logarithms, with a factor of its own for each d; see `Growth`."""
    found = []
    for candidate in dict.fromkeys(r.candidate for r in rows):
        timed = [r for r in rows if r.candidate == candidate and r.train_ms]
        held = [r for r in rows if r.candidate == candidate and r.train_mib]
        time = _slopes([r.d for r in timed], [[r.n for r in timed], [r.k for r in timed]], [r.train_ms or 0.0 for r in timed])
        memory = _slopes([r.d for r in held], [[r.n + r.k for r in held]], [r.train_mib or 0.0 for r in held])
        found.append(Growth(candidate, time[0], time[1], memory[0]))
    return found


def _slopes(groups: Sequence[int], quantities: Sequence[Sequence[int]], values: Sequence[float]) -> list[float | None]:
    """Exponent of each quantity in values = factor_group * prod quantity^exponent; None for a quantity that does not vary."""
    varying = [i for i, quantity in enumerate(quantities) if len(set(quantity)) > 1]
    slopes: list[float | None] = [None] * len(quantities)
    if not varying:
        return slopes
    columns = [np.log(quantities[i]) for i in varying] + [np.array(groups) == group for group in sorted(set(groups))]
    solution, *_ = np.linalg.lstsq(np.stack(columns, 1).astype(float), np.log(values), rcond=None)
    for i, slope in zip(varying, solution, strict=False):
        slopes[i] = float(slope)
    return slopes


def benchmark_quantizers(
    candidates: Iterable[str] = tuple(CANDIDATES),
    tokens: Sequence[int] = TOKENS,
    dims: Sequence[int] = DIMS,
    codes: Sequence[int] = CODES,
    *,
    rounds: int = 5,
    memory_limit_gib: float = 4.0,
    time_limit_s: float = 30.0,
    threads: int = 0,
) -> QuantizerBenchmark:
    """Measure every candidate in every case of tokens x dims x codes.

    memory_limit_gib: a candidate that is estimated to need more is skipped.  time_limit_s: a candidate is not repeated any more after so
    many seconds in one case, its first step included.  threads: 0 for all cores.
    Raises VqlabError for an unknown candidate or a size below 1.
    """
    chosen = list(candidates)
    for name in chosen:
        if name not in CANDIDATES:
            raise VqlabError(f"unknown candidate {name!r}: choose from {', '.join(CANDIDATES)}")
    for what, sizes in (("tokens", tokens), ("dims", dims), ("codes", codes), ("rounds", [rounds])):
        if not sizes or min(sizes) < 1:
            raise VqlabError(f"{what} must be at least 1, got {list(sizes)}")
    rows: list[Measurement] = []
    cases = [Case(n, d, k) for n, d, k in product(tokens, dims, codes)]
    for case in tqdm(cases, desc="cases"):
        rows += _measure_case(chosen, case, rounds, memory_limit_gib, time_limit_s, threads)
    return QuantizerBenchmark(rows, fit_growth(rows), threads or torch.get_num_threads(), rounds)


def _reason_to_skip(name: str, case: Case, memory_limit_gib: float) -> str:
    candidate = CANDIDATES[name]
    if candidate.missing:
        return f"{candidate.missing} is not installed"
    gib = candidate.bytes_needed(case.n, case.d, case.k) / 2**30
    return f"needs about {gib:.1f} GiB" if gib > memory_limit_gib else ""


def _measure_case(names: list[str], case: Case, rounds: int, memory_gib: float, limit_s: float, threads: int) -> list[Measurement]:
    rows = {name: Measurement(name, case.n, case.d, case.k, skipped=_reason_to_skip(name, case, memory_gib)) for name in names}
    running: dict[str, CandidateProcess] = {}
    warmed: dict[str, Warmed] = {}
    seconds: dict[str, dict[str, list[float]]] = {}
    try:
        for name in [name for name in names if not rows[name].skipped]:
            running[name] = CandidateProcess(name, case, threads)
            try:
                warmed[name], seconds[name] = running[name].warm_up(), {"train": [], "ids": []}
            except CandidateError as error:
                running.pop(name).close()
                rows[name] = Measurement(name, case.n, case.d, case.k, skipped=str(error))
        spent = {name: warmed[name].train_s + warmed[name].ids_s for name in running}
        for _ in range(rounds):
            for name, process in running.items():
                if spent[name] > limit_s and seconds[name]["train"]:
                    continue
                for what, taken in seconds[name].items():
                    times = process.seconds(what)
                    taken += times
                    spent[name] += sum(times)
    finally:
        for process in running.values():
            process.close()
    for name in running:
        train, ids = (1e3 * statistics.median(seconds[name][what]) for what in ("train", "ids"))
        rows[name] = Measurement(name, case.n, case.d, case.k, train, ids, warmed[name].train_mib, warmed[name].ids_mib)
    return list(rows.values())

"""Coupled training of every bank: what is recorded, and how the claims follow from it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from vqlab.experiments.collapse import DIM, METHODS, PROTOTYPES, STARTS, Batch, CoupledNetwork, Task, Trace, _claims, train


def batches(seed: int) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        labels = torch.randint(2, (8,), generator=generator)
        tokens = torch.randn(8, 6, DIM, generator=generator)
        tokens[:, :, 0] += 4 * (labels[:, None] - 0.5)
        yield Batch(tokens, torch.arange(6) < torch.randint(2, 7, (8, 1), generator=generator), labels)


@pytest.fixture(scope="module")
def task() -> Task:
    return Task("toy", 2, lambda: torch.nn.Linear(DIM, DIM), batches, [next(batches(1))])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("start", STARTS)
def test_every_bank_is_watched_from_its_start(task: Task, method: str, start: str) -> None:
    trace = train(task, method, start, steps=3, seed=0)
    assert trace.steps == [0, 1, 2, 3]
    usual = train(task, method, "usual", steps=1, seed=0)
    factor = 0.01 if start == "merged" else 1.0
    assert trace.nearest[0] == pytest.approx(factor * usual.nearest[0], rel=1e-2)
    assert trace.minimum[0] <= trace.nearest[0]
    assert trace.network.bank.shape == (PROTOTYPES, DIM)
    assert (trace.margin[0] > 0) == (method == "ddcl")
    assert 0 <= trace.accuracy <= 1


def trace_of(nearest: float) -> Trace:
    network = CoupledNetwork(torch.nn.Identity(), "perceiver", 2)
    return Trace([0, 1], [1.0, nearest], [1.0, nearest], [1.0, 1.0], [1.0, 1.0], 0.5, network)


@pytest.mark.parametrize(
    ("usual", "merged", "peers", "verdicts"),
    [
        (0.9, 0.5, 0.8, ("agrees", "disagrees")),
        (0.9, 0.01, 0.8, ("partly", "disagrees")),
        (0.01, 0.01, 0.01, ("disagrees", "agrees")),
    ],
)
def test_claims(usual: float, merged: float, peers: float, verdicts: tuple[str, str]) -> None:
    traces = {(method, start): [trace_of(peers)] * 2 for method in METHODS for start in STARTS}
    traces["ddcl", "usual"], traces["ddcl", "merged"] = [trace_of(usual)] * 2, [trace_of(merged)] * 2
    claims = _claims("toy", traces)
    assert tuple(claim.verdict for claim in claims) == verdicts
    assert f"{usual:.3f}" in claims[0].ours
    assert ("none" in claims[1].note) == (peers > 0.05)

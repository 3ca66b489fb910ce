"""The study of two time scales: what a run records, and a whole quick study."""

from pathlib import Path

import pandas as pd
import pytest
import torch
from PIL import Image

from vqlab.data import load_images
from vqlab.experiments import Settings, reproduce, stability
from vqlab.experiments.phase_boundary import PhaseBoundary
from vqlab.experiments.stability import boundary_claims, time_scale_claim
from vqlab.experiments.time_scales import CoupledRun, CoupledSystem, FixedTemperatureCodebook, train_coupled


def test_the_absolute_system_keeps_its_temperature_and_the_relative_one_follows() -> None:
    torch.manual_seed(0)
    images = torch.rand(8, 3, 16, 16)
    for system, follows in (("absolute", False), ("relative", True)):
        model = CoupledSystem(system, 8).train()
        (book,) = model.quantizer.codebooks
        assert isinstance(book, FixedTemperatureCodebook) != follows
        z = torch.randn(200, 8)
        book(z)
        before = float(book.temperature)
        book(0.1 * z)
        assert float(book.temperature) == pytest.approx(before * (0.01 if follows else 1.0), rel=1e-4)
        assert model.tokens(images).shape == (8 * 16, 8)


def test_a_run_is_watched_from_its_first_step() -> None:
    data = load_images("sample")
    run = train_coupled("relative", "Adam", 0.1, data.train.sample(64), data.test.sample(16), steps=20, seed=0, codebook_size=16)
    assert run.trace["step"].tolist() == [0, 10, 20]
    assert (run.trace[["margin", "separation", "separation_nearest", "reconstruction"]] > 0).all(axis=None)
    assert run.trace["reconstruction"].iloc[-1] < run.trace["reconstruction"].iloc[0]
    assert not run.collapsed
    assert 0 < run.utilization <= 1
    assert run.psnr > 8


def test_a_diverging_run_ends_as_collapsed() -> None:
    data = load_images("sample")
    run = train_coupled("absolute", "SGD", 1e-12, data.train.sample(64), data.test.sample(16), steps=20, seed=0, codebook_size=16)
    assert run.collapsed


def coupled_run(system: str, epsilon: float, collapsed: bool, optimizer: str = "SGD") -> CoupledRun:
    nearest = 0.001 if collapsed else 0.4
    trace = pd.DataFrame({"step": [0, 10], "margin": [9.0, 0.5 if collapsed else 20.0], "separation": 0.1, "separation_nearest": nearest})
    return CoupledRun(system, optimizer, epsilon, trace, 20.0, 1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(("slow", "equal", "verdict"), [(0, 1, "agrees"), (0, 0, "partly"), (1, 1, "partly"), (1, 0, "disagrees")])
def test_the_claim_is_judged_by_both_sides_of_epsilon_with_constant_temperature(slow: int, equal: int, verdict: str) -> None:
    runs = [
        coupled_run("absolute", epsilon, bool(slow if epsilon < 1 else equal), optimizer)
        for epsilon in (0.01, 0.1, 1.0)
        for optimizer in ("SGD", "Adam")
    ]
    # Neither the other system nor other epsilon decide.
    runs += [coupled_run("relative", 1.0, False), coupled_run("relative", 0.1, True), coupled_run("absolute", 0.3, True)]
    claim = time_scale_claim(runs)
    assert claim.verdict == verdict
    assert f"{4 * slow} of 4" in claim.ours
    assert f"{2 * equal} of 2" in claim.ours
    assert "1 of 2" in claim.note  # the relative system


def test_the_claims_on_the_boundary_follow_what_was_found() -> None:
    rates = pd.DataFrame({"objective": ["L_q", "F"], "predicted": [1.0, 1.0], "measured": [1.001, 1.2]})
    full, free = boundary_claims(PhaseBoundary(rates, {"L_q": 4.01, "F": 2.2}))
    assert (full.verdict, free.verdict) == ("agrees", "disagrees")
    assert full.ours.startswith("4.010")
    assert boundary_claims(PhaseBoundary(rates, {"L_q": float("nan"), "F": 2.0}))[0].verdict == "disagrees"


def test_the_experiment_leaves_tables_and_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = stability.train_coupled
    monkeypatch.setattr(stability, "train_coupled", lambda *a, **k: original(*a, **{**k, "steps": 10, "codebook_size": 8}))
    (outcome,) = reproduce("stability", Settings(out=tmp_path, quick=True, seeds=1))
    out = tmp_path / "stability"
    table = pd.read_csv(out / "two-time-scales.csv")
    assert len(table) == 20
    assert sorted(table["epsilon"].unique()) == [0.01, 0.1, 0.3, 1.0, 3.0]
    assert len(pd.read_csv(out / "traces.csv").groupby("run")) == 20
    figures = sorted(path.name for path in out.glob("*.png"))
    assert figures == ["phase-boundary.png", "time-scales-absolute.png", "time-scales-relative.png"]
    for figure in out.glob("*.png"):
        with Image.open(figure) as picture:
            picture.verify()
    assert outcome.report is not None
    assert [claim.verdict for claim in outcome.report.claims[:2]] == ["agrees", "agrees"]

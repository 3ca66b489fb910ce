"""The study of two time scales: what a run records, and a whole quick study."""

from pathlib import Path

import pandas as pd
import pytest
import torch
from PIL import Image

from vqlab.cli.main import main
from vqlab.data import load_images
from vqlab.experiments import stability
from vqlab.experiments.time_scales import CoupledSystem, FixedTemperatureCodebook, train_coupled


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
    run = train_coupled("relative", "Adam", 0.1, data.train.images[:64], data.test.images[:16], steps=20, seed=0, codebook_size=16)
    assert run.trace["step"].tolist() == [0, 10, 20]
    assert (run.trace[["margin", "separation", "separation_nearest", "reconstruction"]] > 0).all(axis=None)
    assert run.trace["reconstruction"].iloc[-1] < run.trace["reconstruction"].iloc[0]
    assert not run.collapsed
    assert 0 < run.utilization <= 1
    assert run.psnr > 8


def test_a_diverging_run_ends_as_collapsed() -> None:
    data = load_images("sample")
    run = train_coupled("absolute", "SGD", 1e-12, data.train.images[:64], data.test.images[:16], steps=20, seed=0, codebook_size=16)
    assert run.collapsed


def test_the_command_leaves_tables_and_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    original = stability.train_coupled
    monkeypatch.setattr(stability, "train_coupled", lambda *a, **k: original(*a, **{**k, "steps": 10, "codebook_size": 8}))
    assert main(["reproduce", "stability", "--quick", "--out", str(tmp_path), "--threads", "1"]) == 0
    out = tmp_path / "stability"
    assert "| L_q | 4 | 4.0" in capsys.readouterr().out
    table = pd.read_csv(out / "runs.csv")
    assert len(table) == 20
    assert sorted(table["epsilon"].unique()) == [0.01, 0.1, 0.3, 1.0, 3.0]
    assert len(pd.read_csv(out / "traces.csv").groupby("run")) == 20
    figures = sorted(path.name for path in out.glob("*.png"))
    assert figures == ["phase-boundary.png", "time-scales-absolute.png", "time-scales-relative.png"]
    for figure in out.glob("*.png"):
        with Image.open(figure) as picture:
            picture.verify()

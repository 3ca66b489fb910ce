"""Sweeps from the command line: trained, skipped, resumed, summed up."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml
from PIL import Image

from vqlab.cli.main import main
from vqlab.data import ImageBatch
from vqlab.errors import VqlabError
from vqlab.sweep import SweepOutcome, load_sweep, report_sweep, run_sweep
from vqlab.sweep.report import confidence_interval
from vqlab.training.module import TokenizerModule

CONTENT: dict[str, Any] = {
    "settings": {
        "data": "sample",
        "epochs": 2,
        "batch_size": 300,
        "conv": {"width": 4, "residual_blocks": 0},
        "optim.warmup_steps": 0,
        "run": {"progress": False, "tensorboard": False, "precision": "float32", "threads": 1, "usage_warning": 0.0, "device": "cpu"},
    },
    "axes": {"quantizer": ["ddcl", "lfq"], "codebook_size": [8, 16], "seed": [0, 1]},
}


@pytest.fixture(autouse=True)
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plots of single runs have their own tests."""
    monkeypatch.setattr("vqlab.sweep.execute.plot_run", lambda folder: [])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(CONTENT, sort_keys=False))
    return path


def times(folder: Path) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in sorted(folder.glob("runs/*/metrics.csv"))}


def test_a_sweep_is_trained_then_resumed_then_skipped(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["sweep", str(file), "--out", str(out)]
    original, steps = TokenizerModule.training_step, []

    def interrupted(self: TokenizerModule, batch: ImageBatch, batch_idx: int) -> torch.Tensor:
        steps.append(self.global_step)
        if len(steps) == 12:  # in the second epoch of the third run, of two steps each
            raise KeyboardInterrupt
        return original(self, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(TokenizerModule, "training_step", interrupted)
        assert main(command) == 130
    assert "the same command goes on" in capsys.readouterr().err
    before = times(out)
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert shown.count("done already") == 2
    assert shown.count(": started") + shown.count(": resumed") == 6
    after = times(out)
    assert len(after) == 8
    assert [name for name in before if before[name] == after[name]] == ["ddcl-k8-seed0", "ddcl-k8-seed1"]
    assert all(len(pd.read_csv(out / "runs" / name / "metrics.csv")) == 2 for name in after)

    table = pd.read_csv(out / "sweep.csv")
    assert len(table) == 8
    text = (out / "sweep.md").read_text()
    assert text in shown
    rows = [line for line in text.splitlines() if line.startswith(("| ddcl", "| lfq"))]
    assert len(rows) == 4
    psnr = table[(table["quantizer"] == "lfq") & (table["codebook_size"] == 16)]["test/hard/psnr"]
    half = 12.7062 * psnr.std(ddof=1) / math.sqrt(2)  # Student's t, one degree of freedom
    assert f"{psnr.mean():.2f} ± {half:.2f}" in rows[3]
    figures = sorted(path.name for path in out.glob("*.png"))
    assert figures == ["gap-over-temperature.png", "psnr-over-rate.png", "usage-over-epochs.png"]
    for figure in out.glob("*.png"):
        with Image.open(figure) as picture:
            picture.verify()

    assert main(command) == 0
    assert capsys.readouterr().out.count("done already") == 8
    assert times(out) == after


def test_list_trains_nothing(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(file), "--out", str(tmp_path / "out"), "--list"]) == 0
    assert capsys.readouterr().out.split() == [f"{q}-k{k}-seed{s}" for q in ("ddcl", "lfq") for k in (8, 16) for s in (0, 1)]
    assert not (tmp_path / "out").exists()


def test_other_settings_are_not_mistaken_for_the_same_run(file: Path, tmp_path: Path) -> None:
    CONTENT_ONE = {**CONTENT, "axes": {"quantizer": ["ddcl"], "codebook_size": [8]}}
    file.write_text(yaml.safe_dump(CONTENT_ONE, sort_keys=False))
    first = load_sweep(file, tmp_path / "runs")
    run_sweep(first)
    run_sweep(load_sweep(file, tmp_path / "runs", {"run.threads": 2}))  # computes elsewhere, gives the same
    for key, value in (("ddcl.tau_end", 0.03), ("epochs", 5)):
        with pytest.raises(VqlabError, match=rf"was trained with {key} .*, the sweep asks for {value}"):
            run_sweep(load_sweep(file, tmp_path / "runs", {key: value}))
    (tmp_path / "other" / "ddcl-k8").mkdir(parents=True)
    with pytest.raises(VqlabError, match="is in the way"):
        run_sweep(load_sweep(file, tmp_path / "other"))


def test_a_run_that_diverges_is_told_of_and_left(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(yaml.safe_dump({**CONTENT, "axes": {"quantizer": ["vqvae", "lfq"], "codebook_size": [8]}}, sort_keys=False))
    original = TokenizerModule._unit
    wrong = {"vqvae": float("nan"), "lfq": 1.0}

    def unit(self: TokenizerModule, images: torch.Tensor) -> torch.Tensor:
        return original(self, images) * wrong[self.tokenizer.quantizer.codebooks[0].kind]

    monkeypatch.setattr(TokenizerModule, "_unit", unit)
    assert main(["sweep", str(file), "--out", str(tmp_path / "out")]) == 1
    captured = capsys.readouterr()
    assert "1 of 2 runs failed: vqvae-k8" in captured.err
    assert "failed: vqvae-k8: " in (tmp_path / "out" / "sweep.md").read_text()
    assert len(pd.read_csv(tmp_path / "out" / "sweep.csv")) == 1


def test_a_sweep_without_a_complete_run_has_no_report(file: Path, tmp_path: Path) -> None:
    with pytest.raises(VqlabError, match="no run of the sweep tiny is complete"):
        report_sweep(load_sweep(file, tmp_path / "runs"), SweepOutcome(), tmp_path)


def test_confidence_intervals() -> None:
    mean, half, count = confidence_interval([1.0, 2.0, 3.0])
    assert (mean, count) == (2.0, 3)
    assert half == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    mean, half, count = confidence_interval([5.0, math.nan])
    assert (mean, count) == (5.0, 1)
    assert math.isnan(half)
    assert math.isnan(confidence_interval([math.nan]).mean)

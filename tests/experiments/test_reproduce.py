"""All experiments by one command, on tiny data; what is missing is skipped and named."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
import torch

from vqlab.cli.main import main
from vqlab.data.tables import DATA_VARIABLE
from vqlab.errors import VqlabError
from vqlab.experiments import EXPERIMENTS, Settings, reproduce, table
from vqlab.experiments.report import Claim, Report, claims_table, markdown_table
from vqlab.experiments.scaling import exponent, peak_bytes

pytest.importorskip("sklearn")
pytest.importorskip("transformers")


#: What every claim of the paper is about.
PROMISED = (
    "100 % of the codebook",
    "V >= 0",
    "exact decomposition",
    "orbital",
    "linear cost",
    "above k-means",
    "near logistic regression",
    "epsilon <= 0.1 stable, 1.0 not",
    "collapse repels",
    "do not merge",
)


def test_all_quick(
    data_folder: Path, encoder_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vqlab.experiments.scaling.QUICK_LENGTHS", (64, 128, 256))
    monkeypatch.setattr("vqlab.experiments.vq.KINDS", {"ddcl": EXPERIMENT_KINDS()["ddcl"], "vq-plain": EXPERIMENT_KINDS()["vq-plain"]})
    monkeypatch.setattr("vqlab.experiments.stability.QUICK_STEPS", 4)
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    words = ["reproduce", "all", "--quick", "--seeds", "1", "--threads", "1", "--data", str(data_folder)]
    words += ["--encoder", str(encoder_folder), "--out", str(tmp_path / "out"), "--cache", str(tmp_path / "cache")]
    assert main(words) == 0
    torch.set_num_threads(threads)
    torch.set_rng_state(state)
    printed = capsys.readouterr().out
    assert "skipped" not in printed
    assert "holds none of aclimdb" in printed  # a part of one experiment
    for name in EXPERIMENTS:
        folder = tmp_path / "out" / name
        report = (folder / "report.md").read_text(encoding="utf-8")
        claims = json.loads((folder / "claims.json").read_text())
        assert claims, name
        assert all(claim["ours"] and claim["verdict"] for claim in claims)
        assert claims[0]["claim"] in report
        assert list(folder.glob("*.csv")), name
        pictures = list(folder.glob("*.png"))
        assert pictures, name
        assert all(f"]({picture.name})" in report for picture in pictures)
    everything = (tmp_path / "out" / "claims.md").read_text(encoding="utf-8")
    for promised in PROMISED:
        assert promised in everything


def EXPERIMENT_KINDS() -> dict[str, object]:
    from vqlab.experiments import vq

    return dict(vq.KINDS)


def test_what_is_missing_is_skipped_by_all_and_an_error_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    monkeypatch.setattr(table, "EXPERIMENTS", {"orbital": EXPERIMENTS["orbital"]})
    settings = Settings(out=tmp_path, quick=True, data=tmp_path / "absent")
    lines: list[str] = []
    (outcome,) = reproduce("all", settings, lines.append)
    assert outcome.report is None
    assert "no such file" in outcome.skipped
    assert "skipped: " in lines[-1]
    with pytest.raises(VqlabError, match="no such file"):
        reproduce("orbital", settings)
    with pytest.raises(VqlabError, match="unknown experiment"):
        reproduce("something", settings)


def test_reports_are_written_as_they_read(tmp_path: Path) -> None:
    report = Report("x", "heading", tables={"A, b": pd.DataFrame({"n": [1.23456, 2.0], "t": ["a|b", "c"]})}, notes=["note"])
    report.claims.append(Claim("c", "p", "o", "agrees"))
    text = report.write(tmp_path).read_text()
    assert "| 1.235 | a\\|b |" in text
    assert "| c | p | o | agrees |  |" in text
    assert pd.read_csv(tmp_path / "a--b.csv")["n"].tolist() == [1.23456, 2.0]
    assert markdown_table(pd.DataFrame({"a": [1]})) == "| a |\n|---|\n| 1 |"
    assert claims_table([]).startswith("| claim |")


def test_peak_memory_counts_what_is_held_at_once() -> None:
    def action() -> None:
        a = torch.zeros(1 << 18)  # 1 MiB
        del a
        b, c = torch.zeros(1 << 18), torch.zeros(1 << 18)
        del b, c

    assert peak_bytes(action) == pytest.approx(2 << 20, rel=0.05)


def test_exponents() -> None:
    n = [64, 128, 256, 512, 1024]
    assert exponent(n, [x**2.0 for x in n]) == pytest.approx(2)
    assert exponent(n, [100 + 0.001 * x for x in n]) < 0.1

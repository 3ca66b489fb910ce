"""Tables, skips and fitted growth of the quantizer benchmark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from vqlab.benchmarks.candidates import CANDIDATES
from vqlab.benchmarks.figures import plot_growth
from vqlab.benchmarks.quantizers import Measurement, QuantizerBenchmark, benchmark_quantizers, fit_growth
from vqlab.cli.main import main
from vqlab.errors import VqlabError


def ideal(candidate: str, n: int, d: int, k: int) -> Measurement:
    return Measurement(candidate, n, d, k, train_ms=d * 1e-3 * n**1.1 * k**0.9, ids_ms=1.0, train_mib=d * 0.1 * (n + k), ids_mib=1.0)


def test_growth_is_found_again_whatever_the_dimension() -> None:
    rows = [ideal("ddcl", n, d, k) for n in (64, 256) for d in (4, 16) for k in (32, 128, 512)]
    (growth,) = fit_growth([*rows, Measurement("ddcl", 9, 4, 9, skipped="too large")])
    assert growth.time_n == pytest.approx(1.1)
    assert growth.time_k == pytest.approx(0.9)
    assert growth.memory == pytest.approx(1.0)


def test_growth_needs_two_sizes() -> None:
    (growth,) = fit_growth([ideal("ddcl", 64, 4, k) for k in (32, 64)])
    assert growth.time_n is None
    assert growth.time_k == pytest.approx(0.9)
    (growth,) = fit_growth([ideal("ddcl", 64, 4, 32)])
    assert (growth.time_n, growth.time_k, growth.memory) == (None, None, None)


def test_the_command_measures_skips_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CANDIDATES, "vqvae", CANDIDATES["vqvae"].__class__("VQ-VAE", CANDIDATES["vqvae"].build, package="no_such_package"))
    out, picture = tmp_path / "speed.json", tmp_path / "growth.png"
    words = ["--candidates", "[ddcl,plain,vqvae]", "--tokens", "[128]", "--dims", "[4]", "--codes", "[32,8192]", "--rounds", "1"]
    assert main(["bench", "quantizers", *words, "--threads", "1", "--memory_limit", "0.02", "--out", str(out), "--plot", str(picture)]) == 0
    rows: list[dict[str, Any]] = json.loads(out.read_text())["rows"]
    assert [(row["candidate"], row["k"]) for row in rows] == [(name, k) for k in (32, 8192) for name in ("ddcl", "plain", "vqvae")]
    reasons = [row["skipped"] for row in rows]
    assert reasons[0] == reasons[1] == reasons[3] == ""
    assert reasons[4] == "needs about 0.0 GiB" or "GiB" in reasons[4]
    assert reasons[2] == reasons[5] == "no_such_package is not installed"
    assert all(row["train_ms"] > 0 and row["ids_ms"] > 0 for row in rows if not row["skipped"])
    table = capsys.readouterr().out
    assert "skipped: no_such_package is not installed" in table
    assert table.count("| DDCL |") == 3  # two cases and the growth
    with Image.open(picture) as image:
        image.verify()


def test_ratios_are_relative_to_ddcl() -> None:
    rows = [Measurement("ddcl", 1, 1, 2, 10.0, 4.0, 1.0, 1.0), Measurement("plain", 1, 1, 2, 65.0, 2.0, None, None)]
    line = next(line for line in QuantizerBenchmark(rows, [], 1, 1).table().splitlines() if "whole matrix" in line)
    assert [cell.strip() for cell in line.split("|")[5:-1]] == ["65.0", "6.50", "-", "2.0", "0.50", "-"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"candidates": ["nosuch"]}, "unknown candidate 'nosuch'"), ({"tokens": [0]}, "tokens must"), ({"rounds": 0}, "rounds must")],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(VqlabError, match=message):
        benchmark_quantizers(**changes)


def test_a_plot_of_nothing_but_skips(tmp_path: Path) -> None:
    result = QuantizerBenchmark([Measurement("ddcl", 1, 1, 2, skipped="x")], [], 1, 1)
    assert plot_growth(result, tmp_path / "deep" / "a.png").is_file()

"""`vqlab probe` from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from vqlab.cli.main import main

pytest.importorskip("sklearn", reason="the probes need scikit-learn")


def test_json_and_table_agree(train_golden: Callable[[str, str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    run = train_golden("ddcl", "ddcl")
    words = ["probe", str(run), "--data", "sample", "--train_images", "200", "--features", "hard_histogram", "pooled_encoder"]
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["train_images"] == 200
    assert list(report["features"]) == ["hard_histogram", "pooled_encoder"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    name, dimensions, linear, knn = lines[2].split()
    found = report["features"]["hard_histogram"]
    assert (name, int(dimensions)) == ("hard_histogram", found["dimensions"])
    assert (linear, knn) == (f"{found['linear']:.1%}", f"{found['knn']:.1%}")


def test_refused_in_one_line(train_golden: Callable[[str, str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    run = train_golden("vqvae", "vqvae")
    capsys.readouterr()
    assert main(["probe", str(run), "--data", "sample", "--features", "soft_histogram"]) == 2
    assert capsys.readouterr().err.count("\n") == 1

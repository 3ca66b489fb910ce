"""`vqlab prior` and `vqlab sample` from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from vqlab.cli.main import main

pytest.importorskip("transformers", reason="priors need transformers")

TINY = ["--data", "sample", "--steps", "2", "--width", "16", "--layers", "1", "--heads", "2", "--threads", "1"]


def test_from_a_run_to_a_picture(train_golden: Callable[[str, str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, prior = train_golden("vqvae", "vqvae"), tmp_path / "prior"
    capsys.readouterr()
    assert main(["prior", str(run), "--out", str(prior), *TINY, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["bits_per_dim"] == pytest.approx(64 * figures["bits_per_token"] / 3072)
    assert main(["prior", "--resume", str(prior)]) == 0  # finished: measures again
    assert f"{figures['bits_per_dim']:.4f}" in capsys.readouterr().out
    assert main(["sample", str(prior), "--per_row", "3", "--threads", "1"]) == 0
    assert capsys.readouterr().out.strip() == str(prior / "samples.png")
    with Image.open(prior / "samples.png") as picture:
        assert picture.width < picture.height  # ten classes below each other, three images across


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["prior"], "tokenizer"),
        (["prior", "nowhere"], "config.json"),
        (["prior", "x", "--resume", "y"], "--resume"),
        (["prior", "--resume", "nowhere"], "not a prior"),
        (["prior", "x", "--steps", "0"], "steps"),
        (["sample", "nowhere"], "not a prior"),
        (["sample", "nowhere", "--per_row", "0"], "per_row"),
    ],
)
def test_refused_in_one_line(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []

"""`vqlab evaluate` on the golden runs."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from torch import Tensor

from vqlab.cli.evaluate import evaluate
from vqlab.cli.main import main
from vqlab.metrics.features import ImageFeatures


def last_row(run: Path) -> dict[str, float]:
    row = pd.read_csv(run / "metrics.csv").iloc[-1]
    return {str(name).removeprefix("test/"): float(value) for name, value in row.items() if str(name).startswith("test/")}


def test_json_has_the_figures_of_the_run(golden: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (golden, golden / "tokenizer"):
        assert main(["evaluate", str(folder), "--data", "sample", "--json"]) == 0
        figures = json.loads(capsys.readouterr().out)
        assert figures == pytest.approx(last_row(golden), rel=1e-4, abs=1e-5)


def test_text_has_one_figure_a_line(golden: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(golden), "--data", "sample"]) == 0
    lines = dict(line.split() for line in capsys.readouterr().out.splitlines())
    expected = last_row(golden)
    assert lines.keys() == expected.keys()
    assert float(lines["hard/psnr"]) == pytest.approx(expected["hard/psnr"], rel=1e-4)


def test_batch_size_does_not_matter(golden: Path) -> None:
    whole, parts = (evaluate(golden, "sample", Path("data"), size) for size in (200, 37))
    assert parts == pytest.approx(whole, rel=1e-4, abs=1e-5)


def test_bf16_is_close_to_float32(golden: Path) -> None:
    exact, rough = (evaluate(golden, "sample", Path("data"), 200, precision) for precision in ("float32", "bf16"))
    assert rough["hard/psnr"] == pytest.approx(exact["hard/psnr"], abs=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["nowhere"], "config.json"),
        (["RUN", "--data", "nosuch"], "cifar10, sample"),
        (["RUN", "--data", "sample", "--batch_size", "0"], "batch_size"),
        (["RUN", "--data", "sample", "--precision", "float16"], "precision"),
        (["RUN", "--nosuch", "1"], "nosuch"),
        ([], "tokenizer"),
    ],
)
def test_refused_in_one_line(options: list[str], message: str, train_golden: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(train_golden)
    run = str(train_golden("ddcl", "ddcl"))
    capsys.readouterr()
    assert main(["evaluate", *(run if word == "RUN" else word for word in options)]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1


def test_damaged_weights(golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_bytes((golden / "tokenizer" / "config.json").read_bytes())
    weights = (golden / "tokenizer" / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    assert main(["evaluate", str(tmp_path), "--data", "sample"]) == 2
    assert "model.safetensors" in capsys.readouterr().err


class Tiny(ImageFeatures):
    """Stands for a network whose weights may not be installed."""

    name, num_features = "tiny", 3

    def embed(self, pixels: Tensor) -> Tensor:
        return pixels[:, :, ::16, 8].flatten(1)[:, :3] / 255


def test_distances_carry_the_name_of_their_features(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vqlab.reconstruction_distance.load_features", lambda name: Tiny())
    plain = evaluate(golden, "sample", Path("data"), 200)
    whole, parts = (evaluate(golden, "sample", Path("data"), size, fd="tiny") for size in (200, 37))
    added = {name for name in whole if name not in plain}
    assert added == {f"{kind}/fd_tiny" for kind in ("hard", "soft") if f"{kind}/psnr" in plain}
    for name in added:
        assert parts[name] == pytest.approx(whole[name], rel=1e-3, abs=1e-6)
        assert whole[name] >= 0


def test_unknown_features_are_refused(golden: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(golden), "--data", "sample", "--fd", "nosuch"]) == 2
    assert "inception_v3" in capsys.readouterr().err

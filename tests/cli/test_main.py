"""The `vqlab` command from end to end on the golden runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from vqlab import __version__
from vqlab.cli.main import guarded, main
from vqlab.errors import VqlabError
from vqlab.quantizers import PEER_NAMES, QUANTIZER_NAMES, NonFiniteError

TrainGolden = Callable[[str, str], Path]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.strip() == f"vqlab {__version__}"


@pytest.mark.parametrize("command", ["train", "evaluate", "plot", "compare", "reproduce"])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert f"vqlab {command}" in capsys.readouterr().out


def test_plot(golden: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plots = golden / "plots"
    made_by_training = {path.name for path in plots.iterdir()}
    for path in plots.iterdir():
        path.unlink()
    assert main(["plot", str(golden)]) == 0
    printed = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert {path.name for path in printed} == made_by_training == {path.name for path in plots.iterdir()}
    for path in printed:
        with Image.open(path) as picture:
            picture.verify()


def test_plot_of_several_runs(train_golden: TrainGolden, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [train_golden(name, name) for name in QUANTIZER_NAMES if name not in PEER_NAMES]
    capsys.readouterr()
    assert main(["plot", *map(str, runs)]) == 0
    assert {Path(line).parents[1] for line in capsys.readouterr().out.splitlines()} == set(runs)


def test_compare(train_golden: TrainGolden, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [train_golden(name, name) for name in QUANTIZER_NAMES if name not in PEER_NAMES]
    capsys.readouterr()
    out = tmp_path / "comparison"
    assert main(["compare", *map(str, runs), "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {"comparison.png", "comparison.md", "comparison.csv"}
    assert (out / "comparison.md").read_text() in shown
    table = pd.read_csv(out / "comparison.csv")
    assert len(table) == len(runs)
    for run in runs:
        psnr = pd.read_csv(run / "metrics.csv")["test/hard/psnr"].iloc[-1]
        assert run.name in shown
        assert f"{psnr:.2f}" in shown


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "command"),
        (["nosuch"], "nosuch"),
        (["plot"], "runs"),
        (["plot", "nowhere"], "nowhere is not a run folder"),
        (["compare"], "runs"),
        (["compare", "nowhere"], "nowhere is not a run folder"),
        (["train", "--nosuch", "1"], "nosuch"),
    ],
)
def test_refused_in_one_line(
    argv: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (VqlabError("a\nb"), 2, "error: a\nb\n"),  # some explain themselves over several lines, such as data that cannot be had
        (NonFiniteError("step 3: NaN"), 1, "error: step 3: NaN\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (KeyboardInterrupt("go on"), 130, "go on\n"),
    ],
)
def test_exit_codes(error: BaseException, code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    def action() -> None:
        raise error

    assert guarded(action) == code
    assert capsys.readouterr().err == text


def test_programming_errors_are_not_hidden() -> None:
    def action() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        guarded(action)

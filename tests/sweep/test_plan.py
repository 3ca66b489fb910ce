"""Sweep files: every combination once, every mistake by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from vqlab.errors import VqlabError
from vqlab.sweep import Sweep, load_sweep

ROOT = Path(__file__).parents[2]
AXES = {"quantizer": ["ddcl", "vqvae"], "codebook_size": [16, 32], "seed": [0, 1]}


def load(folder: Path, content: Any, overrides: dict[str, Any] | None = None) -> Sweep:
    (folder / "s.yaml").write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
    return load_sweep(folder / "s.yaml", folder / "runs", overrides)


def test_every_combination_once(tmp_path: Path) -> None:
    sweep = load(tmp_path, {"settings": {"epochs": 3, "conv": {"width": 8}, "run.threads": 1}, "axes": AXES})
    assert sweep.name == "s"
    assert [run.name for run in sweep.runs[:3]] == ["ddcl-k16-seed0", "ddcl-k16-seed1", "ddcl-k32-seed0"]
    assert len({run.name for run in sweep.runs}) == 8
    for run in sweep.runs:
        config = run.config
        assert (config.quantizer, config.codebook_size, config.seed) == tuple(run.point.values())
        assert (config.name, config.epochs, config.conv.width, config.run.threads) == (run.name, 3, 8, 1)
        assert config.run.root == str(tmp_path / "runs")


def test_settings_of_a_quantizer_are_an_axis_of_its_runs_alone(tmp_path: Path) -> None:
    sweep = load(tmp_path, {"axes": {"quantizer": ["ddcl", "vqvae"], "ddcl.tau_end": [0.01, 0.02], "optim.epsilon": [0.1]}})
    assert [run.name for run in sweep.runs] == ["ddcl-tau_end0.01-epsilon0.1", "ddcl-tau_end0.02-epsilon0.1", "vqvae-epsilon0.1"]
    assert [run.config.codebook for run in sweep.runs] == [{"tau_end": 0.01}, {"tau_end": 0.02}, {}]
    assert sweep.runs[2].point == {"quantizer": "vqvae", "optim.epsilon": 0.1}


def test_base_settings_and_command_line_win_in_this_order(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("epochs: 1\nbatch_size: 2\nlr: 0.5\nddcl: {tau_end: 0.5, tau_start: 0.6}\n")
    (tmp_path / "b.yaml").write_text("batch_size: 3\n")
    content = {
        "base": ["a.yaml", "b.yaml"],
        "settings": {"lr": 0.25, "ddcl.tau_end": 0.25, "run": {"threads": 2}},
        "axes": {"quantizer": ["ddcl", "fsq"]},
    }
    ddcl, fsq = load(tmp_path, content, {"run.threads": 1}).runs
    for run in (ddcl, fsq):
        assert (run.config.epochs, run.config.batch_size, run.config.lr, run.config.run.threads) == (1, 3, 0.25, 1)
    assert ddcl.config.codebook == {"tau_end": 0.25, "tau_start": 0.6}
    assert fsq.config.codebook == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"axes": {}}, "needs at least one axis"),
        ({}, "needs at least one axis|'axes' must be a mapping"),
        ({"axes": {"seed": 3}}, "axis seed must be a list of at least one value, got 3"),
        ({"axes": {"seed": []}}, "axis seed must be a list"),
        ({"axes": {"seed": [1, 1]}}, "axis seed names a value twice"),
        ({"axes": {"name": ["a"]}}, "name cannot be an axis"),
        ({"axes": {"seed": [1]}, "setings": {}}, "unknown key 'setings'"),
        ({"axes": {"seed": [1]}, "settings": [1]}, "'settings' must be a mapping"),
        ({"axes": {"seed": [1]}, "base": "absent.yaml"}, "there is no file .*absent.yaml"),
        ({"axes": {"quantizer": ["pq"]}}, "run pq: quantizer must be one of"),
        ({"axes": {"quantizer": ["fsq"], "codebook_size": [11]}}, "run fsq-k11: .*codebook_size of fsq must be a product"),
        ({"axes": {"conv.widht": [8]}}, "widht"),
        ({"axes": {"ddcl.tau_end": [-1.0]}}, "tau_end"),
        ({"axes": {"seed": [1]}, "settings": {"lr": 1e-3, "lr.max": 2}}, "lr has a value"),
        ("axes: [", "cannot read"),
        ("- 1", "must be a mapping"),
    ],
)
def test_refused(content: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(VqlabError, match=message):
        load(tmp_path, content)


@pytest.mark.parametrize("file", sorted(path.name for path in (ROOT / "configs" / "sweeps").glob("*.yaml")))
def test_shipped_sweeps_are_accepted(file: str, tmp_path: Path) -> None:
    sweep = load_sweep(ROOT / "configs" / "sweeps" / file, tmp_path)
    assert len(sweep.runs) > 1

"""Files of the run folder: tables, arrays, pictures, the resolved configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from vqlab.config import TrainConfig
from vqlab.tokenizer import Tokenizer
from vqlab.training.records import RunFolder, reconstruction_arrays, step_minima, write_arrays, write_table


def test_table_has_all_columns_and_empty_cells(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", [{"epoch": 1, "a": 0.1}, {"epoch": 2, "a": 1 / 3, "b": 2.0}])
    assert (tmp_path / "t.csv").read_text() == "epoch,a,b\n1,0.1,\n2,0.3333333333333333,2.0\n"
    table = pd.read_csv(tmp_path / "t.csv")
    assert table["a"].tolist() == [0.1, 1 / 3]
    assert np.isnan(table["b"][0])


def test_failed_table_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table(tmp_path / "t.csv", [{"epoch": 1}])

    def broken(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="No space"):
        write_table(tmp_path / "t.csv", [{"epoch": 1}, {"epoch": 2}])
    assert (tmp_path / "t.csv").read_text() == "epoch\n1\n"
    assert os.listdir(tmp_path) == ["t.csv"]


def test_arrays(tmp_path: Path) -> None:
    write_arrays(tmp_path / "a.npz", {"level1": np.arange(3), "level2": np.zeros((2, 2), np.uint8)})
    with np.load(tmp_path / "a.npz") as found:
        assert found["level1"].tolist() == [0, 1, 2]
        assert found["level2"].dtype == np.uint8
    write_arrays(tmp_path / "none.npz", {})
    with np.load(tmp_path / "none.npz") as found:
        assert found.files == []


def test_step_minima() -> None:
    rows = [{"step": 1, "level1/V": 0.5, "level1/margin": 30.0, "level2/V": 1.0}, {"step": 2, "level1/V": 0.7, "level1/margin": 20.0}]
    assert step_minima(rows) == {"level1/V": 0.5, "level1/margin": 20.0, "level2/V": 1.0}
    assert step_minima([]) == {}


def test_config_file_is_read_back(make_config: Any, tmp_path: Path) -> None:
    config = make_config(levels=2, codebook_size=[16, 8], ddcl={"tau_end": 0.01})
    RunFolder(tmp_path, config, "python train.py").write_config()
    assert TrainConfig.from_dict(yaml.safe_load((tmp_path / "config.yaml").read_text())) == config.resolved()


@pytest.mark.parametrize("quantizer", ["ddcl", "vqvae", "none"])
def test_reconstructions(quantizer: str, make_config: Any) -> None:
    torch.manual_seed(0)
    tokenizer = Tokenizer(make_config(quantizer=quantizer).tokenizer_config()).train()
    images = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8)
    before = {name: value.clone() for name, value in tokenizer.state_dict().items()}
    arrays = reconstruction_arrays(tokenizer, images)
    assert tokenizer.training
    assert all(torch.equal(before[name], value) for name, value in tokenizer.state_dict().items())
    assert list(arrays) == (["original", "hard", "soft"] if quantizer == "ddcl" else ["original", "hard"])
    assert np.array_equal(arrays["original"], images.numpy())
    assert all(array.dtype == np.uint8 and array.shape == (3, 3, 16, 16) for array in arrays.values())
    if quantizer != "none":
        decoded = tokenizer.eval().decode_indices(tokenizer.encode(images))
        assert np.array_equal(arrays["hard"], (decoded * 255).round().byte().numpy())

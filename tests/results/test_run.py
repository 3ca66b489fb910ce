import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from vqlab.errors import VqlabError
from vqlab.results import Run


def test_a_run_holds_what_its_files_say(make_run):
    path = make_run("ddcl", 2, 5, sizes=(512, 64), blank=("test/hard/psnr",))
    run = Run.load(path)
    assert (run.name, run.quantizer, run.levels, run.codebook_size) == ("ddcl-2", "ddcl", 2, (512, 64))
    assert run.epochs.tolist() == [1, 2, 3, 4, 5]
    assert run.config == {"quantizer": "ddcl", "seed": 0}
    assert {level: len(counts) for level, counts in run.counts.items()} == {1: 512, 2: 64}
    assert set(run.reconstructions) == {"original", "soft", "hard"}
    assert len(run.steps) == 2
    psnr = run.column("test/hard/psnr")
    assert math.isnan(psnr[1])
    assert np.isfinite(psnr[[0, 2, 3, 4]]).all()
    assert run.has("test/hard/psnr")
    assert not run.has("test/level3/V")
    assert np.isnan(run.column("test/level3/V")).tolist() == [True] * 5


def test_a_run_of_none_has_no_codes(make_run):
    run = Run.load(make_run("none"))
    assert (run.levels, run.codebook_size, run.counts) == (0, (), {})


def test_steps_may_be_absent(make_run):
    path = make_run()
    (path / "steps.csv").unlink()
    assert Run.load(path).steps is None


@pytest.mark.parametrize("name", ["config.yaml", "metrics.csv", "counts.npz", "reconstructions.npz", "summary.json"])
def test_a_missing_file_is_named(make_run, name: str):
    path = make_run()
    (path / name).unlink()
    with pytest.raises(VqlabError, match=rf"{name} is missing"):
        Run.load(path)


@pytest.mark.parametrize("name", ["config.yaml", "metrics.csv", "counts.npz", "reconstructions.npz", "summary.json"])
@pytest.mark.parametrize("content", [b"", b"\x00\xff{[: broken", b"PK\x03\x04 cut off"])
def test_a_broken_file_is_named_in_one_line(make_run, name: str, content: bytes):
    path = make_run()
    (path / name).write_bytes(content)
    with pytest.raises(VqlabError, match=name) as caught:
        Run.load(path)
    assert "\n" not in str(caught.value)


def test_a_truncated_archive_is_named(make_run):
    path = make_run()
    file = path / "reconstructions.npz"
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(VqlabError, match=r"reconstructions\.npz cannot be read"):
        Run.load(path)


def test_no_folder_is_named(tmp_path: Path):
    with pytest.raises(VqlabError, match="nowhere is not a run folder"):
        Run.load(tmp_path / "nowhere")


def test_a_word_in_a_column_of_numbers_is_named(make_run):
    path = make_run()
    table = pd.read_csv(path / "metrics.csv").astype({"train/loss": object})
    table.loc[3, "train/loss"] = "oops"
    table.to_csv(path / "metrics.csv", index=False)
    with pytest.raises(VqlabError, match=r"metrics\.csv: column 'train/loss'"):
        Run.load(path)


def test_contents_that_do_not_fit_are_named(make_run):
    path = make_run("ddcl", 2)
    np.savez(path / "counts.npz", level1=np.ones(4, dtype=np.int64))
    with pytest.raises(VqlabError, match=r"counts\.npz lacks level2"):
        Run.load(path)
    path = make_run("ddcl", 1)
    np.savez(path / "reconstructions.npz", original=np.zeros((2, 3, 8, 8), np.uint8), hard=np.zeros((2, 3, 8, 8)))
    with pytest.raises(VqlabError, match=r"reconstructions\.npz: hard is not a uint8"):
        Run.load(path)
    path = make_run("vqvae", 1)
    summary = json.loads((path / "summary.json").read_text())
    del summary["parameters"]
    (path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(VqlabError, match=r"summary\.json lacks parameters"):
        Run.load(path)
    (path / "summary.json").write_text(json.dumps(summary | {"parameters": 1, "codebook_size": [1, 2]}))
    with pytest.raises(VqlabError, match="for 1 levels"):
        Run.load(path)

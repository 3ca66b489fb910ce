"""`vqlab encode` and `vqlab decode`: output, exit codes, two processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vqlab import Tokenizer
from vqlab.cli.main import main
from vqlab.tokens import TokenDataset

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    quantizer = {"topology": "residual", "codebook_dim": 4, "levels": [{"kind": "vqvae", "codebook_size": 16, "init": "random"}]}
    encoder = {"name": "conv", "width": 8, "residual_blocks": 0, "residual_width": 4, "downsamplings": 2}
    return Tokenizer({"channels": 3, "latent_dim": 6, "encoder": encoder, "quantizer": quantizer}).save_pretrained(tmp_path / "tok")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for i in range(7):
        Image.fromarray(np.random.default_rng(i).integers(0, 256, (8, 8, 3), np.uint8)).save(tmp_path / "in" / f"{i}.png")
    return tmp_path / "in"


def test_there_and_back(tokenizer: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    tokens, images = tmp_path / "tokens", tmp_path / "images"
    encode = ["encode", str(pictures), "--tokenizer", str(tokenizer), "--out", str(tokens), "--shard_size", "3"]
    assert main(encode) == 0
    out = capsys.readouterr().out
    assert "7 images in 3 shards" in out
    assert f"{tokens} is complete" in out
    assert main([*encode, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["images"], again["kept"], again["complete"], again["skipped"]) == (0, 3, True, [])
    assert main(["decode", str(tokens), "--tokenizer", str(tokenizer), "--out", str(images), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 7
    assert sorted(path.name for path in images.iterdir()) == [f"{i}.png" for i in range(7)]


def test_exit_codes_where_images_are_bad(tokenizer: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (pictures / "3.png").write_bytes((pictures / "3.png").read_bytes()[:40])
    encode = ["encode", str(pictures), "--tokenizer", str(tokenizer), "--out"]
    assert main([*encode, str(tmp_path / "strict"), "--strict"]) == 2
    assert "error: 3.png: " in capsys.readouterr().err
    assert main([*encode, str(tmp_path / "tokens"), "--json"]) == 3
    captured = capsys.readouterr()
    (skipped,) = json.loads(captured.out)["skipped"]
    assert skipped["name"] == "3.png"
    assert len(TokenDataset(tmp_path / "tokens")) == 6
    assert main([*encode, str(tmp_path / "tokens")]) == 3
    assert "skipped 3.png: " in capsys.readouterr().err


def test_mistakes_are_one_line(tokenizer: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for words in (
        ["encode", "nowhere", "--tokenizer", str(tokenizer)],
        ["encode", str(pictures), "--tokenizer", str(tmp_path)],
        ["encode", str(pictures)],
        ["encode", str(pictures), "--tokenizer", str(tokenizer), "--out", str(pictures)],
        ["encode", str(pictures), "--tokenizer", str(tokenizer), "--precision", "fp8"],
        ["decode", str(pictures), "--tokenizer", str(tokenizer)],
    ):
        assert main(words) == 2
        captured = capsys.readouterr()
        assert captured.err.startswith("error: ")
        assert captured.err.count("\n") == 1
        assert captured.out == ""


def test_two_processes_write_what_one_writes(tokenizer: Path, pictures: Path, tmp_path: Path) -> None:
    command = [str(pictures), "--tokenizer", str(tokenizer), "--shard_size", "2"]
    assert main(["encode", *command, "--out", str(tmp_path / "one")]) == 0
    code = "import sys; from vqlab.cli.main import main; sys.exit(main())"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, "encode", *command, "--out", str(tmp_path / "two")],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "PYTHONPATH": str(REPOSITORY)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert [f"process {rank} of 2: " in output for rank, output in enumerate(outputs)] == [True, True]
    assert [" in 2 shards" in output for output in outputs] == [True, True]
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == names
    assert all((tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes() for name in names)

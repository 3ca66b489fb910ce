"""`vqlab info` of a tokenizer, a run and tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vqlab import Tokenizer
from vqlab.cli.main import main

ROOT = Path(__file__).parents[2]
RELEASED = ROOT / "checkpoints" / "cifar10-ddcl-k512"


def info(path: Path, capsys: pytest.CaptureFixture, *options: str) -> dict:
    assert main(["info", str(path), "--json", *options]) == 0
    content: dict = json.loads(capsys.readouterr().out)
    return content


def test_a_tokenizer(capsys: pytest.CaptureFixture) -> None:
    facts = info(RELEASED, capsys)
    figures = json.loads((RELEASED / "evaluation.json").read_text())
    assert facts["kind"] == "tokenizer"
    assert facts["fingerprint"] == Tokenizer.from_pretrained(RELEASED).fingerprint
    assert (facts["codebook_sizes"], facts["bits_per_token"], facts["pixels_per_token"]) == ([512], 9.0, [4, 4])
    assert facts["hard/psnr"] == figures["hard/psnr"]
    assert facts["level1/utilization"] == figures["level1/utilization"]
    assert main(["info", str(RELEASED)]) == 0
    assert ["fingerprint", facts["fingerprint"]] in [line.split() for line in capsys.readouterr().out.splitlines()]


def test_tokens(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "tokens"
    assert main(["encode", "sample:test", "--tokenizer", str(RELEASED), "--out", str(out), "--shard_size", "150"]) == 0
    capsys.readouterr()
    facts = info(out, capsys, "--check")
    assert (facts["kind"], facts["complete"], facts["checked"]) == ("tokens", True, True)
    assert (facts["images"], facts["tokens"], facts["grid"], facts["shards"], facts["classes"]) == (200, 12_800, [8, 8], 2, 10)
    assert facts["fingerprint"] == Tokenizer.from_pretrained(RELEASED).fingerprint
    shard = out / "shard-00001.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    assert info(out, capsys)["images"] == 200
    assert main(["info", str(out), "--check"]) == 2
    assert "SHA-256" in capsys.readouterr().err
    index = json.loads((out / "index.json").read_text())
    (out / "index.json").rename(out / "plan.json")
    shard.unlink()
    facts = info(out, capsys)
    assert (facts["complete"], facts["shards"], facts["images"]) == (False, "1 of 2", index["images"])


def test_a_run(golden: Path, capsys: pytest.CaptureFixture) -> None:
    facts = info(golden, capsys)
    summary = json.loads((golden / "summary.json").read_text())
    assert (facts["kind"], facts["complete"], facts["checkpoint"]) == ("run", True, True)
    assert facts["hard/psnr"] == summary["test"]["test/hard/psnr"]
    assert facts["fingerprint"] == Tokenizer.from_pretrained(golden / "tokenizer").fingerprint
    assert main(["info", str(golden)]) == 0


def test_something_else(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        assert main(["info", str(path)]) == 2
        assert "neither a tokenizer, nor a run, nor tokens" in capsys.readouterr().err

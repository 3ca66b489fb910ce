"""Releasing a tokenizer with its card."""

import json
from pathlib import Path

import pytest

from vqlab.errors import VqlabError
from vqlab.results.card import release
from vqlab.results.run import Run

FIGURES = {
    "hard/psnr": 24.123,
    "hard/psnr_pooled": 23.5,
    "hard/ssim": 0.8123,
    "level1/utilization": 0.998,
    "level1/perplexity": 431.25,
    "level2/utilization": 0.5,
    "level2/perplexity": 60.0,
}


def finished(make_run, quantizer: str = "vqvae", levels: int = 1) -> Run:
    path = make_run(quantizer, levels)
    (path / "tokenizer").mkdir()
    for name in ("model.safetensors", "config.json"):
        (path / "tokenizer" / name).write_bytes(name.encode())
    return Run.load(path)


def test_files_and_card(make_run, tmp_path: Path):
    run = finished(make_run, levels=2)
    folder = release(run, tmp_path / "checkpoints" / "mine", FIGURES, "cifar10")
    assert {path.name for path in folder.iterdir()} == {"README.md", "config.json", "evaluation.json", "model.safetensors"}
    for name in ("model.safetensors", "config.json"):
        assert (folder / name).read_bytes() == name.encode()
    assert json.loads((folder / "evaluation.json").read_text()) == FIGURES
    card = (folder / "README.md").read_text()
    for text in (
        "quantizer `vqvae`, 512 + 512 codes",
        "1152 bits per image",
        "1,234,567 parameters, trained 10 epochs",
        'from_pretrained("checkpoints/mine")',
        "`python train.py` (10 minutes)",
        "`vqlab evaluate checkpoints/mine --data cifar10`",
        "| PSNR of ids decoded, mean over images | 24.12 dB |",
        "| codes used, level 1 | 99.8% of 512 |",
        "| perplexity, level 2 | 60.0 |",
    ):
        assert text in card, text
    assert "soft" not in card


def test_a_released_tokenizer_is_replaced(make_run, tmp_path: Path):
    run = finished(make_run)
    release(run, tmp_path / "out", FIGURES, "sample")
    release(run, tmp_path / "out", FIGURES | {"hard/psnr": 25.0}, "sample")
    assert json.loads((tmp_path / "out" / "evaluation.json").read_text())["hard/psnr"] == 25.0


def test_refused(make_run, tmp_path: Path):
    run = finished(make_run)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("dear")
    with pytest.raises(VqlabError, match="is not empty and is no tokenizer"):
        release(run, other, FIGURES, "sample")
    with pytest.raises(VqlabError, match="is a file, not a folder"):
        release(run, other / "thesis.tex", FIGURES, "sample")
    assert [path.name for path in other.iterdir()] == ["thesis.tex"]
    assert (other / "thesis.tex").read_text() == "dear"
    (run.path / "tokenizer" / "model.safetensors").unlink()
    with pytest.raises(VqlabError, match=r"holds no tokenizer: .*model\.safetensors is missing"):
        release(run, tmp_path / "new", FIGURES, "sample")


def test_a_plain_autoencoder_is_no_tokenizer(make_run, tmp_path: Path):
    with pytest.raises(VqlabError, match="has no quantizer"):
        release(finished(make_run, "none"), tmp_path / "out", FIGURES, "sample")
    assert not (tmp_path / "out").exists()

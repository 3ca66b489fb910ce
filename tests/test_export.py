"""Graphs of a tokenizer give the tokenizer's ids and images, at any batch size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from vqlab import Tokenizer, VqlabError, export
from vqlab.cli.main import main
from vqlab.export import export_decoder, export_encoder
from vqlab.quantizers import CODEBOOKS


def make(kind: str, levels: int = 1, topology: str = "residual") -> Tokenizer:
    torch.manual_seed(0)
    size = 64
    books = [{"kind": kind, "codebook_size": size}] * levels
    dim = CODEBOOKS[kind].default_dim(size)
    quantizer = {"topology": topology, "codebook_dim": dim, "levels": books}
    encoder = {"name": "conv", "width": 8, "residual_blocks": 1, "residual_width": 4, "downsamplings": 2}
    tokenizer = Tokenizer({"channels": 3, "latent_dim": 6, "encoder": encoder, "quantizer": quantizer}).train()
    tokenizer(torch.rand(8, 3, 16, 16))  # data-dependent starts
    return tokenizer.eval()


@pytest.mark.parametrize("kind", list(CODEBOOKS))
def test_torch_graphs_of_every_quantizer(kind: str, tmp_path: Path) -> None:
    tokenizer = make(kind)
    encoder = export_encoder(tokenizer, tmp_path / "encoder.pt2", "torch", 16)
    decoder = export_decoder(tokenizer, tmp_path / "decoder.pt2", "torch", 16)
    assert encoder.equal == 1.0
    assert decoder.difference < 1e-5
    images = torch.rand(3, 3, 16, 16)
    ids = torch.export.load(tmp_path / "encoder.pt2").module()(images)
    assert torch.equal(ids, tokenizer.encode(images))
    torch.testing.assert_close(torch.export.load(tmp_path / "decoder.pt2").module()(ids), tokenizer.decode_indices(ids))


@pytest.mark.parametrize(("kind", "levels", "topology"), [("ddcl", 1, "residual"), ("vqvae", 2, "residual"), ("ddcl", 2, "cascade")])
def test_onnx_graphs(kind: str, levels: int, topology: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    tokenizer = make(kind, levels, topology)
    assert export_encoder(tokenizer, tmp_path / "encoder.onnx", "onnx", (16, 8)).equal >= 0.999
    assert export_decoder(tokenizer, tmp_path / "decoder.onnx", "onnx", (16, 8)).difference < 1e-4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["decoder.onnx", "encoder.onnx"]
    images = torch.rand(7, 3, 16, 8)
    (ids,) = runtime.InferenceSession(str(tmp_path / "encoder.onnx")).run(None, {"images": images.numpy()})
    assert ids.shape == (7, 4, 2, levels)
    assert (torch.from_numpy(ids) == tokenizer.encode(images)).float().mean() >= 0.99


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make("vqvae")
    with pytest.raises(VqlabError, match="format"):
        export_encoder(tokenizer, tmp_path / "x", "tflite", 16)
    for exporter in (export_encoder, export_decoder):
        with pytest.raises(VqlabError, match="multiples of 4, got 15x15"):
            exporter(tokenizer, tmp_path / "x", "torch", 15)
    quantizer = {"topology": "residual", "codebook_dim": 6, "levels": []}
    plain = Tokenizer({**tokenizer.config(), "quantizer": quantizer}).eval()
    for exporter in (export_encoder, export_decoder):
        with pytest.raises(VqlabError, match="no ids"):
            exporter(plain, tmp_path / "x", "torch", 16)
    monkeypatch.setattr(export, "PIXEL_TOLERANCE", -1.0)
    with pytest.raises(VqlabError, match="differs"):
        export_decoder(tokenizer, tmp_path / "x", "torch", 16)
    assert list(tmp_path.iterdir()) == []


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    make("vqvae").save_pretrained(tmp_path / "tok")
    assert main(["export", str(tmp_path / "tok"), "--out", str(tmp_path / "out"), "--format", "torch", "--image_size", "16"]) == 0
    assert "100.00% of the ids" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["decoder.pt2", "encoder.pt2"]
    assert main(["export", str(tmp_path / "tok"), "--format", "x"]) == 2


def test_every_kind_of_tokenizer(any_tokenizer: Tokenizer, tmp_path: Path) -> None:
    assert export_encoder(any_tokenizer, tmp_path / "encoder.pt2", "torch", 32).equal >= 0.999
    assert export_decoder(any_tokenizer, tmp_path / "decoder.pt2", "torch", 32).difference < 1e-4
    images = torch.rand(3, 3, 32, 32)
    ids = any_tokenizer.encode(images)
    assert torch.export.load(tmp_path / "encoder.pt2").module()(images).shape == ids.shape
    decoded = torch.export.load(tmp_path / "decoder.pt2").module()(ids)
    torch.testing.assert_close(decoded, any_tokenizer.decode_indices(ids), atol=1e-4, rtol=1e-4)
    with pytest.raises(VqlabError, match="31x32"):
        export_encoder(any_tokenizer, tmp_path / "x", "torch", (31, 32))

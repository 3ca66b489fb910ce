"""The pyramid: against a slow reference, its ids, its gradients."""

import math

import pytest
import torch

from vqlab.evaluation import LevelMetrics
from vqlab.quantizers import CODEBOOKS, DDCLCodebook, PyramidQuantizer, VQCodebook, build_codebook, build_quantizer
from vqlab.quantizers.build import TOPOLOGIES
from vqlab.quantizers.latents import LatentSpace
from vqlab.tokenizer import Tokenizer

KINDS = sorted(CODEBOOKS)


def pyramid(kinds: list[str], dim: int = 4, codes: int = 8, normalize: bool = False) -> PyramidQuantizer:
    torch.manual_seed(0)
    books = [build_codebook({"kind": kind, "codebook_size": codes}, dim) for kind in kinds]
    quantizer = PyramidQuantizer(dim, books, normalize=normalize)
    quantizer(torch.randn(16, dim, 8, 8))  # starts codebooks that take their codes from data
    return quantizer.eval()


def reference(z: torch.Tensor, quantizer: PyramidQuantizer) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and sum of codes of one map (d, h, w), place by place in float64."""
    d, h, w = z.shape
    left, total = z.double().clone(), torch.zeros(d, h, w, dtype=torch.float64)
    ids = torch.zeros(h, w, quantizer.num_levels, dtype=torch.int64)
    for level, book in enumerate(quantizer.codebooks):
        cell, codes, before = 2 ** (quantizer.num_levels - 1 - level), book.codes.detach().double(), left.clone()
        for top in range(0, h, cell):
            for left_edge in range(0, w, cell):
                rows, columns = slice(top, min(top + cell, h)), slice(left_edge, min(left_edge + cell, w))
                mean = before[:, rows, columns].reshape(d, -1).mean(1)
                best = int(((codes - mean) ** 2).sum(1).argmin())
                ids[rows, columns, level] = best
                total[:, rows, columns] += codes[best][:, None, None]
                left[:, rows, columns] -= codes[best][:, None, None]
    return ids, total


@pytest.mark.parametrize("kinds", [["vqvae"] * 3, ["ddcl"] * 3, ["vqvae", "ddcl"], ["ddcl"], ["vqvae"] * 4])
@pytest.mark.parametrize("grid", [(8, 8), (5, 7), (1, 1), (2, 3)])
def test_ids_and_codes_against_the_reference(kinds: list[str], grid: tuple[int, int]) -> None:
    quantizer = pyramid(kinds)
    x = torch.randn(2, 4, *grid)
    ids = quantizer.encode(x)
    for image, own in zip(x, ids, strict=True):
        expected, total = reference(image, quantizer)
        assert torch.equal(own, expected)
        torch.testing.assert_close(quantizer.decode_indices(own[None])[0].double(), total, rtol=1e-5, atol=1e-5)
    assert torch.equal(quantizer(x).indices, ids)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("levels", [1, 2, 3])
def test_any_prefix_of_levels(kind: str, levels: int) -> None:
    quantizer = pyramid([kind] * 3, normalize=True)
    x = torch.randn(2, 4, 8, 8)
    whole, short = quantizer.encode(x), quantizer.encode(x, levels)
    assert torch.equal(short, whole[..., :levels])
    assert quantizer.decode_indices(short).shape == (2, 4, 8, 8)
    assert [tuple(ids.shape[1:]) for ids in quantizer.cell_ids(short)] == [(2, 2), (4, 4), (8, 8)][:levels]
    if kind == "vqvae":
        torch.testing.assert_close(quantizer(x).prefixes[levels - 1], quantizer.decode_indices(short), rtol=1e-4, atol=1e-5)


def test_every_level_brings_the_sum_closer() -> None:
    torch.manual_seed(0)
    quantizer = PyramidQuantizer(4, [VQCodebook(4, 64, ema_decay=0.5) for _ in range(3)], normalize=False)
    x = torch.randn(32, 4, 8, 8)
    for _ in range(20):
        quantizer(x)
        quantizer.after_step()
    quantizer.eval()
    errors = [float((quantizer.decode_indices(quantizer.encode(x, levels)) - x).square().mean()) for levels in (1, 2, 3)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[0] < float(x.square().mean())


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind: str) -> None:
    quantizer = pyramid([kind] * 3).train()
    x = torch.randn(3, 4, 8, 8, requires_grad=True)
    out = quantizer(x)
    assert out.quantized.shape == x.shape
    assert len(out.parts) == len(out.prefixes) == 3
    (out.quantized * torch.randn_like(x)).sum().backward(retain_graph=True)
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    assert x.grad.abs().max() > 0
    if not out.loss.requires_grad:  # fsq has no loss of its own
        return
    x.grad = None
    out.loss.backward()
    assert torch.isfinite(x.grad).all()  # type: ignore[arg-type]
    assert x.grad.abs().max() > 0  # type: ignore[union-attr]


def test_later_commitments_reach_the_encoder() -> None:
    quantizer = PyramidQuantizer(2, [VQCodebook(2, 4, init="random"), VQCodebook(2, 4, init="random")], normalize=False).eval()
    x = torch.randn(1, 2, 4, 4, requires_grad=True)
    out = quantizer(x)
    code = quantizer.decode_indices(out.indices[..., :1])
    means = torch.nn.functional.avg_pool2d(x, 2)
    first = (means - quantizer.codebooks[0].codes[out.indices[:, ::2, ::2, 0]].movedim(-1, 1)).square().mean()
    second = (x - code - quantizer.codebooks[1].codes[out.indices[..., 1]].movedim(-1, 1)).square().mean()
    expected = 0.25 * (first + second)
    torch.testing.assert_close(out.loss, expected)
    torch.testing.assert_close(torch.autograd.grad(out.loss, x)[0], torch.autograd.grad(expected, x)[0])


def test_figures_of_the_stack() -> None:
    quantizer = PyramidQuantizer(4, [VQCodebook(4, 16), DDCLCodebook(4, 64), VQCodebook(4, 256)])
    assert quantizer.tokens_per_level((8, 8)) == [4, 16, 64]
    assert quantizer.tokens_per_level((5, 7)) == [2 * 2, 3 * 4, 35]
    bits = sum(n * math.log2(k) for n, k in zip((4, 16, 64), (16, 64, 256), strict=True))
    assert quantizer.bits_per_token * 64 == pytest.approx(bits)
    assert quantizer.is_soft


def test_settings_build_it_again() -> None:
    quantizer = pyramid(["vqvae", "ddcl"], normalize=True)
    again = build_quantizer(4, quantizer.settings())
    assert isinstance(again, PyramidQuantizer)
    assert isinstance(again.space, LatentSpace)
    again.load_state_dict(quantizer.state_dict())
    x = torch.randn(2, 4, 8, 8)
    assert torch.equal(again.eval().encode(x), quantizer.encode(x))
    assert "pyramid" in TOPOLOGIES


def test_refusals() -> None:
    quantizer = pyramid(["vqvae"] * 2)
    with pytest.raises(ValueError, match="needs maps"):
        quantizer(torch.randn(2, 5, 4))
    with pytest.raises(ValueError, match="needs maps"):
        quantizer.encode(torch.randn(2, 5, 4))
    ids = quantizer.encode(torch.randn(1, 4, 4, 4))
    ids[0, 0, 1, 0] = (ids[0, 0, 0, 0] + 1) % 8
    with pytest.raises(ValueError, match="equal within each cell of 2x2"):
        quantizer.decode_indices(ids)
    with pytest.raises(ValueError, match=r"0\.\.7"):
        quantizer.decode_indices(torch.full((1, 4, 4, 2), 8))
    with pytest.raises(ValueError, match=r"levels must lie in 1\.\.2"):
        quantizer.encode(torch.randn(1, 4, 4, 4), 3)


def test_tables_of_the_levels_add_up_to_what_ids_stand_for() -> None:
    levels = [{"kind": "vqvae", "codebook_size": 8}] * 3
    quantizer = {"topology": "pyramid", "normalize": True, "codebook_dim": 4, "levels": levels}
    torch.manual_seed(0)
    tokenizer = Tokenizer({"channels": 3, "latent_dim": 6, "encoder": {"name": "conv", "width": 8}, "quantizer": quantizer}).eval()
    ids = tokenizer.encode(torch.rand(2, 3, 32, 32))
    total = sum(tokenizer.codebook(level)[ids[..., level]] for level in range(3))
    torch.testing.assert_close(total.movedim(-1, 1), tokenizer.embed(ids))


def test_coarse_ids_count_once() -> None:
    quantizer = pyramid(["ddcl"] * 3)
    out = quantizer(torch.randn(2, 4, 8, 8))
    counted = [ids.numel() for ids in quantizer.cell_ids(out.indices)]
    assert counted == [2 * tokens for tokens in quantizer.tokens_per_level((8, 8))] == [8, 32, 128]
    levels = [LevelMetrics(book) for book in quantizer.codebooks]
    for i, (level, ids) in enumerate(zip(levels, quantizer.cell_ids(out.indices), strict=True)):
        level.update(out, i, ids)
    assert [int(level.usage.compute()["counts"].sum()) for level in levels] == counted

"""Finite scalar quantization: its table of levels, its rule and its gradient."""

import math

import pytest
import torch

from vqlab.errors import VqlabError
from vqlab.quantizers.peers.fsq import FSQCodebook, fsq_levels


@pytest.mark.parametrize(
    ("codebook_size", "levels"),
    [
        (240, (8, 6, 5)),  # this and the next four: table 1 of the paper
        (1000, (8, 5, 5, 5)),
        (4375, (7, 5, 5, 5, 5)),
        (15360, (8, 8, 8, 6, 5)),
        (64000, (8, 8, 8, 5, 5, 5)),
        (512, (8, 8, 8)),
        (64, (8, 8)),
        (16, (4, 4)),
        (2048, (8, 8, 8, 4)),
        (8192, (8, 8, 8, 4, 4)),
        (16384, (8, 8, 8, 8, 4)),
        (3, (3,)),
    ],
)
def test_levels(codebook_size: int, levels: tuple[int, ...]) -> None:
    assert fsq_levels(codebook_size) == levels
    assert FSQCodebook.default_dim(codebook_size) == len(levels)


@pytest.mark.parametrize("codebook_size", [1, 2, 11, 22, 26, 509])
def test_sizes_without_factors_are_refused(codebook_size: int) -> None:
    with pytest.raises(ValueError, match=rf"product of levels from 3 to 8 .*, got {codebook_size}$"):
        fsq_levels(codebook_size)


def test_codes_are_the_grid_and_ids_follow_the_paper() -> None:
    """Eq. 1 of the paper by hand, for 8x8x8: bounded to (-4, 4), shifted by a half for even numbers of levels, rounded, over 4."""
    level = FSQCodebook(3, 512)
    z = 3 * torch.randn(500, 3)
    half, offset = 7 * 1.001 / 2, 0.5
    bounded = torch.tanh(z.double() + math.atanh(offset / half)) * half - offset
    steps = bounded.round()
    assert float(steps.min()) == -4
    assert float(steps.max()) == 3
    ids = ((steps + 4) * torch.tensor([1, 8, 64])).sum(-1).long()
    assert torch.equal(level.encode(z), ids)
    torch.testing.assert_close(level.lookup(ids), (steps / 4).float())
    assert len(level.codes.unique(dim=0)) == 512


def test_the_gradient_is_that_of_the_bound() -> None:
    level = FSQCodebook(3, 512).train()
    z = torch.randn(50, 3, requires_grad=True)
    out = level(z)
    out.quantized.sum().backward()
    half = 7 * 1.001 / 2
    expected = (1 - torch.tanh(z.detach() + math.atanh(0.5 / half)).square()) * half / 4
    torch.testing.assert_close(z.grad, expected)
    assert float(out.loss) == 0.0


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "vector_quantize_pytorch", None)
    with pytest.raises(VqlabError, match=r"quantizer 'fsq' needs vector-quantize-pytorch .*extra 'peers'"):
        FSQCodebook(3, 512)

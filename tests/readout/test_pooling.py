"""Every pooling layer: shape, padding without influence, gradients; the simple ones against their definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vqlab.readout import POOLINGS, AttentionPool, SlotAttentionPool
from vqlab.readout.packing import packing_of

MASK = torch.arange(6) < torch.tensor([6, 3])[:, None]


@pytest.fixture
def tokens() -> Tensor:
    return torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", POOLINGS)
@pytest.mark.parametrize("garbage", [1e4, float("nan"), float("inf")])
def test_padding_has_no_influence(name: str, garbage: float, tokens: Tensor) -> None:
    torch.manual_seed(0)
    pool = POOLINGS[name](8, 4)
    out = pool(tokens, MASK)
    assert out.shape == (2, pool.out_dim)
    x = tokens.masked_fill(~MASK[..., None], garbage).requires_grad_()
    other = pool(x, MASK)
    torch.testing.assert_close(other, out)
    other.square().sum().backward()
    assert x.grad is not None
    assert not x.grad[~MASK].nan_to_num(1.0).any()
    assert x.grad[MASK].abs().sum() > 0
    torch.testing.assert_close(pool(tokens[1:, :3]), out[1:], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["attention", "slot", "perceiver", "netvlad"])
def test_parameters_learn(name: str, tokens: Tensor) -> None:
    pool = POOLINGS[name](8, 4)
    pool(tokens, MASK).square().sum().backward()
    assert all(p.grad is not None for p in pool.parameters())
    bank = pool.bank
    assert bank is None or bank.shape == (1 if isinstance(pool, AttentionPool) else 4, 8)


@pytest.mark.parametrize("name", sorted(set(POOLINGS) - {"cls"}))
def test_the_order_of_tokens_does_not_matter(name: str, tokens: Tensor) -> None:
    pool = POOLINGS[name](8, 4)
    torch.testing.assert_close(pool(tokens.flip(1)), pool(tokens), atol=1e-5, rtol=1e-5)


def test_simple_poolings(tokens: Tensor) -> None:
    torch.testing.assert_close(POOLINGS["mean"](8)(tokens, MASK)[1], tokens[1, :3].mean(0))
    torch.testing.assert_close(POOLINGS["max"](8)(tokens, MASK)[1], tokens[1, :3].amax(0))
    assert torch.equal(POOLINGS["cls"](8)(tokens, MASK)[1], tokens[1, 0])
    assert torch.equal(POOLINGS["cls"](8)(tokens, MASK.flip(1))[1], tokens[1, 3])  # padded on the left


def test_slots_share_each_token(tokens: Tensor) -> None:
    pool = SlotAttentionPool(8, 3, rounds=1)
    with torch.no_grad():
        # Slots that start equal stay equal: nothing but their start tells them apart.
        pool.initial.copy_(pool.initial[:1].expand(3, -1))
        slots = pool.slots(tokens, MASK)
    torch.testing.assert_close(slots[:, 0], slots[:, 1])


def test_packing_and_back(tokens: Tensor) -> None:
    packing = packing_of(tokens, MASK)
    packed = packing.pack(tokens)
    assert packed.shape == (9, 8)
    assert packing.sequence.tolist() == [0] * 6 + [1] * 3
    assert torch.equal(packing.unpack(packed), tokens * MASK[..., None])
    torch.testing.assert_close(packing.mean(packed)[1], tokens[1, :3].mean(0))

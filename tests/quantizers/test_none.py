"""The plain autoencoder's quantizer."""

import json

import pytest
import torch

from vqlab.quantizers import NoQuantizer, build_quantizer


@pytest.mark.parametrize("shape", [(2, 8, 5, 7), (2, 8, 8, 8), (1, 8, 1, 1)])
def test_hands_maps_on(shape: tuple) -> None:
    x = torch.randn(shape)
    out = NoQuantizer(8, normalize=False)(x)
    assert torch.equal(out.quantized, x)
    assert out.indices.shape == (shape[0], *shape[2:], 0)
    assert out.loss.item() == 0.0
    assert (out.parts, out.mean_assignment, out.prefixes) == ((), (), ())


def test_hands_sequences_on() -> None:
    x = torch.randn(2, 5, 8)
    out = NoQuantizer(8, normalize=False)(x)
    assert torch.equal(out.quantized, x)
    assert out.indices.shape == (2, 5, 0)


def test_normalises_like_the_others() -> None:
    quantizer = NoQuantizer(8).train()
    out = quantizer(torch.randn(4, 8, 5, 7) * 3 + 1)
    torch.testing.assert_close(out.quantized.mean((0, 2, 3)), torch.zeros(8), rtol=0, atol=1e-5)
    torch.testing.assert_close(out.quantized.std((0, 2, 3), correction=0), torch.ones(8), rtol=1e-4, atol=0)


def test_has_no_ids() -> None:
    quantizer = NoQuantizer(8)
    for call in (
        lambda: quantizer.encode(torch.randn(1, 8, 2, 2)),
        lambda: quantizer.decode_indices(torch.zeros(1, 2, 2, 1, dtype=torch.int64)),
    ):
        with pytest.raises(ValueError, match="has no ids"):
            call()


def test_the_interface_of_a_stack() -> None:
    quantizer = NoQuantizer(8).train()
    quantizer.prepare(10)
    quantizer.after_step()
    quantizer.freeze()
    assert quantizer.codebook_parameters() == []
    assert (quantizer.num_levels, quantizer.codebook_sizes, quantizer.is_soft) == (0, [], False)
    again = build_quantizer(8, json.loads(json.dumps(quantizer.settings())))
    assert isinstance(again, NoQuantizer)
    assert again.settings() == quantizer.settings()


def test_wrong_channels() -> None:
    with pytest.raises(ValueError, match="expected 8 channels on axis 1"):
        NoQuantizer(8)(torch.randn(1, 7, 2, 2))

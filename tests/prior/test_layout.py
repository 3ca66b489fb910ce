"""Sequences of ids and back."""

from __future__ import annotations

import pytest
import torch

from vqlab import Tokenizer, VqlabError
from vqlab.config import TrainConfig
from vqlab.data import load_images
from vqlab.prior.layout import Layout
from vqlab.quantizers import build_quantizer


def test_raster_order_within_a_level_one_level_after_the_other() -> None:
    layout = Layout(2, 3, (5, 7))
    ids = torch.stack([torch.arange(6).view(2, 3) % 5, torch.arange(6).view(2, 3)], -1)[None]
    assert layout.flatten(ids).tolist() == [[0, 1, 2, 3, 4, 0, 5, 6, 7, 8, 9, 10]]
    assert (layout.length, layout.vocabulary, layout.span(0), layout.span(1)) == (12, 12, (0, 5), (5, 12))


@pytest.mark.parametrize("sizes", [(4,), (4, 9), (3, 2, 8)])
def test_unflatten_is_the_inverse(sizes: tuple[int, ...]) -> None:
    layout = Layout(4, 2, sizes)
    ids = torch.stack([torch.randint(size, (5, 4, 2)) for size in sizes], -1)
    assert torch.equal(layout.unflatten(layout.flatten(ids)), ids)


def test_a_cascade_is_its_last_level_which_alone_decodes() -> None:
    config = TrainConfig(topology="cascade", levels=3, codebook_size=32).tokenizer_config()
    quantizer = build_quantizer(config["latent_dim"], config["quantizer"]).eval()
    layout = Layout.of(quantizer, 4, 4)
    assert (layout.codebook_sizes, layout.skipped, layout.length) == ((2,), 2, 16)
    ids = quantizer.encode(torch.randn(3, config["latent_dim"], 4, 4))
    back = layout.unflatten(layout.flatten(ids))
    assert torch.equal(quantizer.decode_indices(back), quantizer.decode_indices(ids))


def test_a_residual_stack_keeps_every_level() -> None:
    config = TrainConfig(levels=2, codebook_size=[8, 16]).tokenizer_config()
    layout = Layout.of(build_quantizer(config["latent_dim"], config["quantizer"]), 4, 4)
    assert (layout.codebook_sizes, layout.skipped, layout.length) == ((8, 16), 0, 32)


def test_refused() -> None:
    config = TrainConfig(quantizer="none").tokenizer_config()
    with pytest.raises(VqlabError, match="no ids"):
        Layout.of(build_quantizer(config["latent_dim"], config["quantizer"]), 4, 4)
    with pytest.raises(ValueError, match="expected ids"):
        Layout(4, 4, (8,)).flatten(torch.zeros(2, 4, 5, 1, dtype=torch.long))


def test_a_pyramid_has_each_coarse_id_once_coarse_levels_first(any_tokenizer: Tokenizer) -> None:
    ids = any_tokenizer.encode(load_images("sample").test.plain(torch.arange(5)))
    layout = Layout.of(any_tokenizer.quantizer, *any_tokenizer.token_grid(32, 32))
    sequence = layout.flatten(ids)
    assert sequence.shape == (5, layout.length)
    assert layout.length == sum(any_tokenizer.quantizer.tokens_per_level(any_tokenizer.token_grid(32, 32)))
    back = layout.unflatten(sequence)
    kept = slice(layout.skipped, None)
    assert torch.equal(back[..., kept], ids[..., kept])
    torch.testing.assert_close(any_tokenizer.decode_indices(back), any_tokenizer.decode_indices(ids))
    levels = [layout.level_of(position) for position in range(layout.length)]
    assert levels == sorted(levels)
    for level, part in enumerate(layout.by_level(sequence)):
        start, end = layout.span(level)
        assert int(part.min()) >= start
        assert int(part.max()) < end


def test_a_pyramid_on_a_grid_that_its_cells_do_not_divide() -> None:
    layout = Layout(3, 5, (4, 9), pyramid=True)
    assert (layout.places_by_level, layout.length) == ((6, 15), 21)
    sequence = torch.cat([torch.randint(4, (2, 6)), 4 + torch.randint(9, (2, 15))], 1)
    ids = layout.unflatten(sequence)
    assert ids.shape == (2, 3, 5, 2)
    assert torch.equal(layout.flatten(ids), sequence)
    assert ids[0, 2, 4, 0] == sequence[0, 5]

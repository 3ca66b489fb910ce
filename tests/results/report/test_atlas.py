"""The codebook atlas against loops over tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from vqlab import Tokenizer
from vqlab.config import TrainConfig
from vqlab.data import load_images
from vqlab.images import as_unit_images
from vqlab.results.report.atlas import PATCHES, build_atlases, hard_chain_distances, sprite

IMAGES = load_images("sample").test.images[:8]


def make_tokenizer(topology: str = "residual", sizes: tuple[int, ...] = (6, 5)) -> Tokenizer:
    torch.manual_seed(0)
    content = {"codebook_size": list(sizes), "levels": len(sizes), "topology": topology, "codebook_dim": 4}
    config = TrainConfig.from_dict({**content, "quantizer": "vqvae", "conv": {"width": 8, "residual_blocks": 0}})
    tokenizer = Tokenizer(config.tokenizer_config())
    with torch.no_grad():
        tokenizer(as_unit_images(IMAGES))
    return tokenizer.eval()


@pytest.mark.parametrize("topology", ["residual", "cascade", "pyramid"])
@torch.no_grad()
def test_distances_are_those_by_which_the_ids_were_chosen(topology: str) -> None:
    tokenizer = make_tokenizer(topology)
    features = tokenizer.encode_features(as_unit_images(IMAGES))
    ids = tokenizer.quantizer.encode(features)
    found = hard_chain_distances(tokenizer.quantizer, features, ids)
    for level, book in enumerate(tokenizer.quantizer.codebooks):
        for other in range(book.codebook_size):  # no other code of the level is nearer
            changed = ids.clone()
            changed[..., level] = other
            assert (hard_chain_distances(tokenizer.quantizer, features, changed)[..., level] >= found[..., level] - 1e-5).all()


def test_counts_patches_and_neighbours_of_every_code() -> None:
    tokenizer = make_tokenizer()
    atlases = build_atlases(tokenizer, IMAGES, batch_size=3)
    ids = tokenizer.encode(IMAGES)
    padded = np.pad(IMAGES.numpy().transpose(0, 2, 3, 1), ((0, 0), (4, 4), (4, 4), (0, 0)), mode="reflect")
    with torch.no_grad():
        distances = hard_chain_distances(tokenizer.quantizer, tokenizer.encode_features(as_unit_images(IMAGES)), ids)
    for level, atlas in enumerate(atlases):
        codes = tokenizer.quantizer.codebooks[level].codes.detach().numpy()
        assert atlas.counts.sum() == 8 * 64
        for code in range(len(codes)):
            places = [tuple(p) for p in np.argwhere(ids[..., level].numpy() == code)]
            assert atlas.counts[code] == len(places)
            assert atlas.filled[code] == min(len(places), PATCHES)
            places.sort(key=lambda p: float(distances[(*p, level)]))
            for shown, (n, row, column) in zip(atlas.patches[code], places[:PATCHES], strict=False):
                np.testing.assert_array_equal(shown, padded[n, 4 * row : 4 * row + 12, 4 * column : 4 * column + 12])
            assert (atlas.patches[code, len(places) :] == 255).all()
            apart = np.linalg.norm(codes - codes[code], axis=1)
            expected = [k for k in np.argsort(apart, kind="stable") if k != code][:6]
            np.testing.assert_allclose(atlas.distances[code], apart[expected], rtol=1e-5)


def test_plane_is_the_principal_one() -> None:
    atlas = build_atlases(make_tokenizer(), IMAGES)[0]
    codes = make_tokenizer().quantizer.codebooks[0].codes.detach().double().numpy()
    values = np.sort(np.linalg.eigvalsh(np.cov(codes.T)))[::-1]
    np.testing.assert_allclose(atlas.plane.var(0, ddof=1), values[:2], rtol=1e-4)
    np.testing.assert_allclose(atlas.variance, values[:2] / values.sum(), rtol=1e-4)


def test_a_single_code_has_no_neighbours() -> None:
    atlas = build_atlases(make_tokenizer(sizes=(1,)), IMAGES)[0]
    assert atlas.neighbours.shape == (1, 0)
    assert np.isfinite(atlas.plane).all()
    assert np.isfinite(atlas.variance).all()


def test_sprite_puts_patches_where_the_page_looks_for_them() -> None:
    patches = np.random.default_rng(0).integers(0, 255, (5, PATCHES, 2, 2, 3)).astype(np.uint8)
    picture = sprite(patches, 4)
    assert picture.shape == (12, 24, 3)
    for code in range(5):
        for place in range(PATCHES):
            top, left = (code // 4) * 6 + (place // 3) * 2, (code % 4) * 6 + (place % 3) * 2
            np.testing.assert_array_equal(picture[top : top + 2, left : left + 2], patches[code, place])


def test_every_kind_of_tokenizer_has_an_atlas(any_tokenizer: Tokenizer) -> None:
    atlases = build_atlases(any_tokenizer, IMAGES)
    grid = any_tokenizer.token_grid(32, 32)
    quantizer = any_tokenizer.quantizer
    per_level = quantizer.tokens_per_level(grid) if quantizer.topology == "pyramid" else [math.prod(grid)] * quantizer.num_levels
    assert [int(atlas.counts.sum()) for atlas in atlases] == [8 * count for count in per_level]
    with torch.no_grad():
        features = any_tokenizer.encode_features(as_unit_images(IMAGES))
    ids = any_tokenizer.encode(IMAGES)
    distances = hard_chain_distances(quantizer, features, ids)
    assert distances.shape == ids.shape
    for level, atlas in enumerate(atlases):
        for other in range(quantizer.codebook_sizes[level]):  # no other code of the level is nearer
            changed = ids.clone()
            changed[..., level] = other
            assert (hard_chain_distances(quantizer, features, changed)[..., level] >= distances[..., level] - 1e-5).all()
        assert atlas.patches.dtype == np.uint8
        for code, filled in enumerate(atlas.filled):
            assert (atlas.patches[code, filled:] == 255).all()


def test_patches_of_coarse_cells_are_reduced() -> None:
    tokenizer = make_tokenizer("pyramid", (6, 5, 7))
    coarse, _, fine = build_atlases(tokenizer, IMAGES)
    assert coarse.patches.shape[2:] == fine.patches.shape[2:] == (12, 12, 3)

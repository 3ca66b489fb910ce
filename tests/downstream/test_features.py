"""Vectors of images against loops over tokens."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from vqlab import Tokenizer, VqlabError
from vqlab.data import load_images
from vqlab.downstream.features import FEATURES, available_features, encode_batch, image_features
from vqlab.images import as_unit_images
from vqlab.quantizers import CODEBOOKS, QUANTIZER_NAMES

MakeTokenizer = Callable[..., Tokenizer]
IMAGES = load_images("sample").test.images[:6]


@pytest.mark.parametrize("quantizer", QUANTIZER_NAMES)
def test_every_available_feature_has_one_row_per_image_and_no_batch_size(make_tokenizer: MakeTokenizer, quantizer: str) -> None:
    tokenizer = make_tokenizer(quantizer)
    names = available_features(tokenizer)
    whole, parts = (image_features(tokenizer, IMAGES, names, size) for size in (6, 4))
    for name in names:
        assert whole[name].shape[0] == 6
        assert whole[name].dtype == np.float32
        np.testing.assert_allclose(parts[name], whole[name], atol=1e-5)
        assert whole[name].std() > 0


@pytest.mark.parametrize("quantizer", list(CODEBOOKS))
def test_hard_histogram_counts_ids_level_by_level(make_tokenizer: MakeTokenizer, quantizer: str) -> None:
    tokenizer = make_tokenizer(quantizer, (8, 4) if CODEBOOKS[quantizer].stackable else (8,))
    ids = tokenizer.encode(IMAGES)
    expected = np.zeros((6, sum(tokenizer.quantizer.codebook_sizes)))
    for n in range(6):
        for token in ids[n].flatten(0, 1).tolist():
            expected[n, token[0]] += 1 / 64
            if len(token) == 2:
                expected[n, 8 + token[1]] += 1 / 64
    np.testing.assert_allclose(image_features(tokenizer, IMAGES, ["hard_histogram"])["hard_histogram"] ** 2, expected, atol=1e-6)


@pytest.mark.parametrize("topology", ["residual", "cascade"])
@pytest.mark.parametrize("quantizer", [kind for kind in CODEBOOKS if CODEBOOKS[kind].is_soft])
def test_soft_histogram_is_the_mean_assignment_of_each_image_by_itself(
    make_tokenizer: MakeTokenizer, quantizer: str, topology: str
) -> None:
    tokenizer = make_tokenizer(quantizer, (8, 4) if CODEBOOKS[quantizer].stackable else (8,), topology)
    found = image_features(tokenizer, IMAGES, ["soft_histogram"])["soft_histogram"] ** 2
    with torch.no_grad():
        for n in range(6):
            alone = tokenizer(as_unit_images(IMAGES[n : n + 1])).quantizer.mean_assignment
            expected = torch.cat([q for q in alone if q is not None]).numpy()
            np.testing.assert_allclose(found[n], expected, atol=1e-5)


def test_maps_and_pooled_vectors(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer("ddcl")
    found = image_features(tokenizer, IMAGES, ["encoder_map", "pooled_encoder", "code_map", "pooled_centroids"])
    with torch.no_grad():
        features = tokenizer.encode_features(as_unit_images(IMAGES)).numpy()
        soft = tokenizer(as_unit_images(IMAGES)).quantizer.quantized.numpy()
    codes = tokenizer.embed(tokenizer.encode(IMAGES)).numpy()
    np.testing.assert_allclose(found["encoder_map"], features.reshape(6, -1), atol=1e-6)
    np.testing.assert_allclose(found["pooled_encoder"], features.mean((2, 3)), atol=1e-6)
    np.testing.assert_allclose(found["code_map"], codes.reshape(6, -1), atol=1e-6)
    np.testing.assert_allclose(found["pooled_centroids"], soft.mean((2, 3)), atol=1e-6)


def test_hooks_are_gone_after_a_pass(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer("ddcl")
    with torch.no_grad():
        encode_batch(tokenizer, as_unit_images(IMAGES), soft=True)
    assert not any(book._forward_pre_hooks for book in tokenizer.quantizer.codebooks)


def test_features_that_a_tokenizer_cannot_give_are_refused_by_name(make_tokenizer: MakeTokenizer) -> None:
    assert "soft_histogram" not in available_features(make_tokenizer("vqvae"))
    assert available_features(make_tokenizer("none")) == ("pooled_encoder", "encoder_map")
    assert set(available_features(make_tokenizer("ddcl"))) == set(FEATURES)
    with pytest.raises(VqlabError, match="soft_histogram"):
        image_features(make_tokenizer("vqvae"), IMAGES, ["soft_histogram"])


def test_every_kind_of_tokenizer_gives_its_features(any_tokenizer: Tokenizer) -> None:
    names = available_features(any_tokenizer)
    assert "hard_histogram" in names
    split = load_images("sample").test
    whole = image_features(any_tokenizer, split, names, 150)
    for name, vectors in whole.items():
        assert vectors.shape[0] == len(split)
        assert np.isfinite(vectors).all()
        np.testing.assert_allclose(image_features(any_tokenizer, IMAGES, [name])[name], vectors[:6], atol=1e-5)
    for name in ("hard_histogram", "soft_histogram"):
        if name in whole:
            levels = np.split(whole[name] ** 2, np.cumsum(any_tokenizer.quantizer.codebook_sizes)[:-1], axis=1)
            if name == "hard_histogram":
                np.testing.assert_allclose([level.sum(1) for level in levels], 1, atol=1e-5)
    assert whole["pooled_encoder"].shape[1] == any_tokenizer.quantizer.dim


def test_images_that_would_be_padded_are_refused(make_tokenizer: MakeTokenizer) -> None:
    with pytest.raises(VqlabError, match="30x32"):
        image_features(make_tokenizer("ddcl"), IMAGES[:, :, :30], ["encoder_map"])

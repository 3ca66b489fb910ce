"""Probes on data whose best accuracy is known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch

from vqlab import Tokenizer, VqlabError
from vqlab.data import ImageData, ImageSplit, load_images
from vqlab.downstream import probe as module
from vqlab.downstream.features import FEATURES
from vqlab.downstream.probe import PENALTIES, probe, probe_vectors

pytest.importorskip("sklearn", reason="the probes need scikit-learn")


MakeTokenizer = Callable[..., Tokenizer]


def two_rings(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A class inside, a class around it: no line separates them, neighbours do."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, count)
    angle, radius = random.uniform(0, 2 * np.pi, count), 1 + 2 * labels
    return (np.stack([np.cos(angle), np.sin(angle)], 1) * radius[:, None]).astype(np.float32), labels


def test_linear_and_neighbour_probes_tell_what_each_can_see() -> None:
    (x, y), (u, v) = two_rings(400, 0), two_rings(400, 1)
    rings = probe_vectors(x, y, u, v, neighbours=5)
    assert rings.knn == 1.0
    assert 0.3 < rings.linear < 0.7
    shifted = probe_vectors(x * 0.1 + 4 * y[:, None].astype(np.float32), y, u * 0.1 + 4 * v[:, None].astype(np.float32), v)
    assert shifted.linear == shifted.knn == 1.0


def test_labels_without_a_relation_give_chance() -> None:
    random = np.random.default_rng(0)
    x, u = (random.normal(size=(n, 10)).astype(np.float32) for n in (500, 1000))
    y, v = (random.integers(0, 10, n) for n in (500, 1000))
    result = probe_vectors(x, y, u, v)
    assert abs(result.linear - 0.1) < 0.04
    assert abs(result.knn - 0.1) < 0.04
    assert result.penalty in PENALTIES


def test_constant_and_unused_dimensions_do_no_harm() -> None:
    (x, y), (u, v) = two_rings(200, 0), two_rings(200, 1)
    x, u = x + 4 * y[:, None].astype(np.float32), u + 4 * v[:, None].astype(np.float32)
    padded = [np.pad(a, ((0, 0), (0, 2)), constant_values=0.5) for a in (x, u)]
    assert probe_vectors(padded[0], y, padded[1], v).linear == pytest.approx(probe_vectors(x, y, u, v).linear, abs=0.01)


def test_report_has_every_feature_and_the_floors(make_tokenizer: MakeTokenizer) -> None:
    data = load_images("sample")
    report = probe(make_tokenizer("ddcl"), data, train_images=200, iterations=5)
    assert list(report.features) == ["pixels", "pca", *FEATURES]
    assert (report.train_images, report.test_images, report.classes) == (200, 200, 10)
    assert report.features["pixels"].dimensions == 3072
    assert all(0 <= value <= 1 for r in report.features.values() for value in (r.linear, r.knn))
    assert report.to_dict()["features"]["pca"]["dimensions"] == 128


def test_tokens_that_hold_the_class_are_found(make_tokenizer: MakeTokenizer) -> None:
    """Images of one grey per class: any tokenizer's features must classify them."""
    labels = torch.arange(10).repeat(20)
    images = (labels * 25).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 32, 32).contiguous()
    split = ImageSplit(images, labels)
    data = ImageData("grey", split, split, tuple("abcdefghij"))
    report = probe(make_tokenizer("ddcl"), data, names=["encoder_map"], neighbours=5)
    assert report.features["encoder_map"].knn == 1.0
    assert report.features["encoder_map"].linear > 0.95


def test_test_labels_do_not_reach_the_fit(make_tokenizer: MakeTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    data, seen = load_images("sample"), []
    fit = module._fit_linear

    def spy(vectors: np.ndarray, labels: np.ndarray, *rest: object) -> object:
        seen.append(len(vectors))
        return fit(vectors, labels, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_fit_linear", spy)
    other = dataclasses.replace(data, test=ImageSplit(data.test.images, data.test.labels.flip(0)))
    first, second = (probe(make_tokenizer("vqvae"), d, names=["code_map"], train_images=100, iterations=3) for d in (data, other))
    assert first.features["code_map"].penalty == second.features["code_map"].penalty
    assert max(seen) == 100


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"names": ["nosuch"]}, "nosuch"),
        ({"train_images": 0}, "train_images"),
        ({"train_images": 10**6}, "train_images"),
        ({"train_images": 20, "neighbours": 50}, "neighbours"),
        ({"iterations": 0}, "iterations"),
    ],
)
def test_refused(make_tokenizer: MakeTokenizer, settings: dict[str, object], message: str) -> None:
    with pytest.raises(VqlabError, match=message):
        probe(make_tokenizer("vqvae"), load_images("sample"), **settings)  # type: ignore[arg-type]


def test_without_scikit_learn_the_error_says_what_to_install(make_tokenizer: MakeTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sklearn", None)
    with pytest.raises(VqlabError, match=r"pip install 'vqlab\[downstream\]'"):
        probe(make_tokenizer("vqvae"), load_images("sample"))

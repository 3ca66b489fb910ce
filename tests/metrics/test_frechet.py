"""Fréchet distances against float64 definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from vqlab import VqlabError
from vqlab.metrics.features import ImageFeatures
from vqlab.metrics.frechet import FrechetDistance


class Corners(ImageFeatures):
    """Four pixels of the first channel."""

    name, num_features = "corners", 4

    def embed(self, pixels: Tensor) -> Tensor:
        return pixels[:, 0, :2, :2].flatten(1) / 255


def reference(real: np.ndarray, fake: np.ndarray) -> float:
    """The formula with a matrix square root by eigenvectors of the symmetric form."""
    difference = real.mean(0) - fake.mean(0)
    a, b = np.cov(real.T), np.cov(fake.T)
    values, vectors = np.linalg.eigh(a)
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    shared = np.sqrt(np.maximum(np.linalg.eigvalsh(root @ b @ root), 0)).sum()
    return float(difference @ difference + np.trace(a) + np.trace(b) - 2 * shared)


def images(count: int, seed: int, scale: float = 1.0) -> Tensor:
    return torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("batch", [1, 8, 300])
def test_value_and_independence_of_the_batch_size(batch: int) -> None:
    real, fake = images(300, 0), images(200, 1, 0.7)
    distance = FrechetDistance(Corners())
    for chunk in real.split(batch):
        distance.update(chunk, real=True)
    for chunk in fake.split(batch):
        distance.update(chunk, real=False)
    vectors = [distance.network(x).double().numpy() for x in (real, fake)]
    assert distance.compute() == pytest.approx(reference(*vectors), rel=1e-6)
    assert distance.compute() > 0.05
    assert distance.name == "fd_corners"


def test_equal_sets_and_a_pure_shift() -> None:
    real = images(100, 0, 0.5)
    same, moved = FrechetDistance(Corners()), FrechetDistance(Corners())
    for distance, other in ((same, real), (moved, real + 51 / 255)):
        distance.update(real, real=True)
        distance.update(other, real=False)
    assert same.compute() == pytest.approx(0, abs=1e-6)
    assert moved.compute() == pytest.approx(4 * 0.2**2, rel=1e-3)


@pytest.mark.parametrize(("real", "fake"), [(1, 5), (5, 1), (0, 5), (0, 0)])
def test_one_image_is_a_clear_error(real: int, fake: int) -> None:
    distance = FrechetDistance(Corners())
    for count, kind in ((real, True), (fake, False)):
        if count:
            distance.update(images(count, 0), real=kind)
    with pytest.raises(VqlabError, match=f"at least 2 real and 2 generated images, got {real} and {fake}"):
        distance.compute()

"""Intervals cover what they should; cluster metrics against brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from vqlab.experiments.clustering import hungarian_accuracy, mutual_information, purity, rand_index
from vqlab.experiments.intervals import Interval, accuracy, bootstrap, over_seeds

pytest.importorskip("scipy")


def test_student_interval() -> None:
    found = over_seeds([1.0, 2.0, 3.0])
    assert found.value == 2.0
    assert found.high - 2.0 == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)  # t(2) at 97.5 %
    assert math.isnan(over_seeds([1.0]).low)
    assert str(over_seeds([1.0])) == "1.000"
    assert str(Interval(0.5, 0.4, 0.6)) == "0.500 [0.400, 0.600]"


def test_the_bootstrap_is_as_wide_as_the_binomial() -> None:
    generator = np.random.default_rng(0)
    labels = np.zeros(400, dtype=np.int64)
    prediction = (generator.random(400) > 0.8).astype(np.int64)
    found = bootstrap(accuracy, labels, [prediction], resamples=500)
    assert found.value == accuracy(labels, prediction)
    assert found.high - found.low == pytest.approx(2 * 1.96 * math.sqrt(0.16 / 400), rel=0.2)


def test_seeds_that_differ_widen_the_interval() -> None:
    labels = np.zeros(400, dtype=np.int64)
    same = [np.arange(400) % 2, np.arange(400) % 2]
    differ = [np.zeros(400, dtype=np.int64), np.ones(400, dtype=np.int64)]
    narrow, wide = (bootstrap(accuracy, labels, p, resamples=200) for p in (same, differ))
    assert narrow.value == wide.value == 0.5
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)
    with pytest.raises(ValueError, match="one prediction per"):
        bootstrap(accuracy, labels, [labels[:3]])


def test_hungarian_accuracy_is_the_best_mapping() -> None:
    generator = np.random.default_rng(0)
    labels, clusters = generator.integers(4, size=(2, 60))
    best = max(accuracy(labels, np.asarray(order)[clusters]) for order in itertools.permutations(range(4)))
    assert hungarian_accuracy(labels, clusters) == best
    assert purity(labels, clusters) >= best


def test_metrics_of_perfect_constant_and_finer_clusters() -> None:
    pytest.importorskip("sklearn")
    labels = np.array([0, 0, 0, 1, 1, 2])
    turned = np.array([2, 2, 2, 0, 0, 1])
    for metric in (hungarian_accuracy, purity, mutual_information, rand_index):
        assert metric(labels, turned) == pytest.approx(1.0)
    constant = np.zeros(6, dtype=np.int64)
    assert hungarian_accuracy(labels, constant) == purity(labels, constant) == 0.5
    assert mutual_information(labels, constant) == rand_index(labels, constant) == 0.0
    finer = np.arange(6)
    assert purity(labels, finer) == 1.0
    assert hungarian_accuracy(labels, finer) == 0.5

"""95 % confidence intervals for figures that vary with the seed and with the test set."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.int64]
Metric = Callable[[Labels, Labels], float]


@dataclass(frozen=True)
class Interval:
    """A figure with the bounds of its 95 % interval; NaN bounds where one value has none."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isnan(self.low):
            return f"{self.value:.3f}"
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def bootstrap(metric: Metric, labels: Labels, predictions: Sequence[Labels], resamples: int = 200, seed: int = 0) -> Interval:
    """Mean of metric(labels, prediction) over seeds, with an interval over seeds and test items drawn with replacement.

    labels: (n,) of the test items.  predictions: one (n,) per seed. The interval covers both what another seed and what another test set
    of this size would change: a two-level bootstrap (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13).
    Percentiles are moved so that the resamples' mean falls on the value: metrics of clusters are biased upward on resamples, which hold
    items twice.
    """
    if not predictions or any(len(p) != len(labels) for p in predictions):
        raise ValueError("bootstrap needs at least one prediction per test item")
    generator = np.random.default_rng(seed)
    value = float(np.mean([metric(labels, p) for p in predictions]))
    values = []
    for _ in range(resamples):
        items = generator.integers(len(labels), size=len(labels))
        seeds = generator.integers(len(predictions), size=len(predictions))
        values.append(np.mean([metric(labels[items], predictions[i][items]) for i in seeds]))
    low, high = np.quantile(values, [0.025, 0.975])
    shift = value - float(np.mean(values))
    return Interval(value, float(low) + shift, float(high) + shift)


def over_seeds(values: Sequence[float]) -> Interval:
    """Mean of one value per seed and Student's interval for it; a single value has no interval."""
    from scipy.stats import t

    array = np.asarray(values, dtype=np.float64)
    mean = float(array.mean())
    if len(array) < 2:
        return Interval(mean, math.nan, math.nan)
    half = float(t.ppf(0.975, len(array) - 1) * array.std(ddof=1) / math.sqrt(len(array)))
    return Interval(mean, mean - half, mean + half)


def accuracy(labels: Labels, predictions: Labels) -> float:
    """Share of items whose prediction is their label."""
    return float(np.mean(labels == predictions))


def as_labels(values: Any) -> Labels:
    """A tensor or array as int64 labels."""
    return np.asarray(values, dtype=np.int64)

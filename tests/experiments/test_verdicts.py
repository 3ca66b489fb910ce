"""How figures become verdicts: each experiment's claims on figures that are given."""

from __future__ import annotations

import numpy as np
import pytest

from vqlab.data.orbital import OrbitData
from vqlab.experiments import orbital, text, vq
from vqlab.experiments.hierarchy import StackFit, _identity_error
from vqlab.experiments.intervals import Interval

NARROW = 0.01


def interval(value: float) -> Interval:
    return Interval(value, value - NARROW, value + NARROW)


@pytest.mark.parametrize(("ddcl", "kmeans", "verdict"), [(0.8, 0.7, "agrees"), (0.705, 0.7, "partly"), (0.6, 0.7, "disagrees")])
def test_clusters_of_texts(ddcl: float, kmeans: float, verdict: str) -> None:
    figures = {"DDCL on pooled vectors": interval(ddcl), "k-means on pooled vectors": interval(kmeans)}
    claim = text._cluster_claim("sst2", 0.867, 2, figures)
    assert claim.verdict == verdict
    assert claim.paper == "0.867"
    assert str(interval(kmeans)) in claim.ours


@pytest.mark.parametrize(
    ("ddcl", "reference", "verdict"), [(0.80, 0.81, "agrees"), (0.85, 0.81, "agrees"), (0.75, 0.81, "partly"), (0.52, 0.81, "disagrees")]
)
def test_readout_of_texts(ddcl: float, reference: float, verdict: str) -> None:
    assert text._readout_claim("imdb", interval(ddcl), interval(reference), interval(0.55)).verdict == verdict


def test_orbits() -> None:
    sets = {"a": np.zeros((1, 1)), "b": np.zeros((1, 1))}
    names = [*orbital.VARIANTS, orbital.KMEANS, "constant guess"]
    scores = {(name, method): interval(0.7) for name in sets for method in names}

    def verdict(above: float, *where: str) -> str:
        seeds = {(name, method): [0.7, 0.7, 0.7] for name in sets for method in names}
        for name in where:
            for variant in orbital.VARIANTS:
                seeds[name, variant] = [0.7 + above, 0.71 + above, 0.69 + above]
        return orbital._claim(sets, scores, seeds).verdict

    assert verdict(0.1, "a", "b") == "agrees"
    assert verdict(0.1, "a") == "partly"
    scores |= {("c", method): interval(0.7) for method in names}
    sets["c"] = np.zeros((1, 1))
    assert verdict(0.1, "a") == "disagrees"  # one setting of three is no agreement
    del sets["c"]
    assert verdict(-0.1, "a", "b") == verdict(0.005, "a", "b") == "disagrees"  # within what seeds vary


def test_confusion_counts_orbits() -> None:
    labels = np.array([0, 0, 1, 1, 1])
    data = OrbitData(np.zeros((5, 3)), np.zeros((5, 3)), ("a", "e", "i"), labels, ("LEO", "GEO"), "x")
    table = orbital.confusion(data, np.array([0, 1, 1, 1, 1])).set_index("regime")
    assert table.loc["LEO"].tolist() == [1, 1]
    assert table.loc["GEO"].tolist() == [0, 3]


def test_standardised_columns() -> None:
    x = orbital.standardised(np.array([[1.0, 5.0], [3.0, 5.0]]))
    assert x.tolist() == [[-1.0, 0.0], [1.0, 0.0]]


@pytest.mark.parametrize(("first", "verdict"), [(1.0, "agrees"), (0.97, "partly"), (0.5, "disagrees")])
def test_use_of_the_codebook(first: float, verdict: str) -> None:
    use = {name: [[0.2, 1.0], [0.2, 1.0]] for name in vq.KINDS}
    use["ddcl"] = [[1.0, 1.0], [first, 1.0]]
    full, hard = vq._claims(use)
    assert full.verdict == verdict
    assert hard.verdict == "partly"
    assert "0.200" in hard.ours


def test_the_identity_is_measured_at_the_worst_step() -> None:
    parts = [{"V": [1.0, 1.0], "L_q": [3.0, 4.0], "L_OLS": [2.0, 2.0]}]
    assert _identity_error(StackFit(np.zeros(1, dtype=np.int64), parts)) == pytest.approx(0.25)

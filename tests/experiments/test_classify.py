"""Every pooling learns a task whose answer lies in single tokens; k-means centres are those of the tokens; references are exact."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vqlab.experiments.classify import (
    FitOptions,
    KMeansPool,
    build_classifier,
    fit_classifier,
    linear_reference,
    mean_vectors,
    optimizer_of,
)
from vqlab.experiments.features import TokenFeatures
from vqlab.experiments.text import METHODS
from vqlab.readout import DDCLReadout

pytest.importorskip("sklearn")
DIM = 8


def tokens_of(count: int, seed: int) -> TokenFeatures:
    """Sequences of 3 to 6 tokens; every token of class c lies around +-2 on axis c."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    lengths = torch.randint(3, 7, (count,), generator=generator)
    states = 0.3 * torch.randn(int(lengths.sum()), DIM, generator=generator)
    which = labels.repeat_interleave(lengths)
    states[torch.arange(len(states)), which] += 2
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return TokenFeatures(states.half(), torch.zeros(len(states), dtype=torch.int32), offsets, labels)


@pytest.mark.parametrize("method", METHODS)
def test_every_pooling_learns_what_its_tokens_say(method: str) -> None:
    train, test = tokens_of(128, 0), tokens_of(40, 1)
    options = FitOptions(classes=2, prototypes=4, epochs=8, batch_size=16, lr=2e-2, codebook_dim=8)
    fit = fit_classifier(method, train, test, options, seed=0)
    assert (fit.predictions == test.labels.numpy()).mean() > 0.95
    assert fit.parameters == sum(p.numel() for p in fit.network.parameters())
    if method == "ddcl":
        assert len(fit.history["V"]) == 8 * 8
        assert min(fit.history["V"]) >= 0
    else:
        assert not fit.history


def test_the_same_seed_gives_the_same_fit() -> None:
    train, test = tokens_of(32, 0), tokens_of(16, 1)
    options = FitOptions(classes=2, prototypes=4, epochs=1, batch_size=16)
    first, second = (fit_classifier("ddcl", train, test, options, seed=3) for _ in range(2))
    assert first.history == second.history
    assert np.array_equal(first.predictions, second.predictions)


def test_prototypes_learn_faster_by_one_over_epsilon_and_do_not_decay() -> None:
    network = build_classifier("ddcl", DIM, FitOptions(classes=2, prototypes=4))
    assert isinstance(network.pooling, DDCLReadout)
    rest, own = optimizer_of(network, 1e-3, 0.1).param_groups
    assert own["params"] == network.pooling.codebook_parameters()
    assert own["lr"] == pytest.approx(10 * rest["lr"])
    assert own["weight_decay"] == 0.0


def test_kmeans_pool_counts_real_tokens_at_their_nearest_centre() -> None:
    pool = KMeansPool(DIM, 2)
    pool.fit(tokens_of(64, 0), seed=0)
    centres = pool.centres[pool.centres[:, 0].argsort(descending=True)]
    torch.testing.assert_close(centres, 2 * torch.eye(DIM)[:2], atol=0.15, rtol=0)
    pool.centres.copy_(2 * torch.eye(DIM)[:2])
    tokens = torch.stack([2 * torch.eye(DIM)[[0, 0, 1, 1]]])
    assert pool(tokens, torch.tensor([[1, 1, 1, 0]])).tolist() == [pytest.approx([2 / 3, 1 / 3])]


def test_references() -> None:
    train, test = tokens_of(64, 0), tokens_of(30, 1)
    assert np.array_equal(linear_reference(train, test), test.labels.numpy())
    first = train.states[: int(train.offsets[1])].float().mean(0)
    torch.testing.assert_close(mean_vectors(train)[0], first)

"""The probabilities of a prior, and what is drawn from it."""

from __future__ import annotations

import pytest
import torch
from torch import Generator

from vqlab import VqlabError
from vqlab.prior import Prior, sample_ids
from vqlab.prior.layout import Layout

pytest.importorskip("transformers", reason="priors need transformers")


def make_prior(sizes: tuple[int, ...] = (5,), classes: tuple[str, ...] = ("a", "b"), scale: float = 12.0) -> Prior:
    """A prior with sharp, random probabilities on a 2x2 grid."""
    torch.manual_seed(0)
    prior = Prior(Layout(2, 2, sizes), classes, width=16, layers=2, heads=2).eval()
    with torch.no_grad():
        for p in prior.parameters():
            if p.dim() > 1:
                p.mul_(scale)
    return prior


def draw(prior: Prior, count: int, **settings: float) -> torch.Tensor:
    labels = torch.arange(count) % len(prior.classes) if prior.classes else None
    settings = {"temperature": 1.0, "top_k": 0, **settings}
    return sample_ids(prior, labels, count, generator=Generator().manual_seed(3), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("sizes", [(5,), (3, 4)])
@torch.no_grad()
def test_probabilities_of_each_position_sum_to_one_over_the_ids_of_its_level(sizes: tuple[int, ...]) -> None:
    prior = make_prior(sizes)
    for position, level in ((0, 0), (3, 0), (4, 1)):
        if level >= len(sizes):
            continue
        ids = prior.layout.flatten(torch.zeros(sizes[level], 2, 2, len(sizes), dtype=torch.long))
        ids[:, position] = prior.layout.span(level)[0] + torch.arange(sizes[level])
        nats = prior.nats(prior.layout.unflatten(ids), torch.zeros(sizes[level], dtype=torch.long))
        assert float((-nats[:, position]).exp().sum()) == pytest.approx(1, abs=1e-5)


@torch.no_grad()
def test_an_id_depends_on_earlier_ids_and_the_class_only() -> None:
    prior, labels = make_prior((3, 4)), torch.tensor([1])
    ids = torch.zeros(1, 2, 2, 2, dtype=torch.long)
    before = prior.nats(ids, labels)
    for position in range(8):
        sequence = prior.layout.flatten(ids)
        sequence[0, position] += 1
        after = prior.nats(prior.layout.unflatten(sequence), labels)
        assert torch.allclose(after[:, :position], before[:, :position], atol=1e-5)
        assert not torch.allclose(after[:, position:], before[:, position:], atol=1e-3)
    assert not torch.allclose(prior.nats(ids, torch.tensor([0])), before, atol=1e-3)


@pytest.mark.parametrize("sizes", [(5,), (3, 4)])
@torch.no_grad()
def test_kept_keys_and_values_change_nothing(sizes: tuple[int, ...]) -> None:
    """Greedy ids, drawn with the cache, are the likeliest at every position of one pass over the whole sequence."""
    prior = make_prior(sizes)
    ids = draw(prior, 4, temperature=0.0)
    labels = torch.arange(4) % 2
    sequence = prior.layout.flatten(ids)
    hidden = prior.gpt.transformer(torch.cat([prior.start(labels, 4), sequence[:, :-1]], 1)).last_hidden_state
    for position in range(prior.layout.length):
        level = position // 4
        likeliest = prior.logits(hidden[:, position], level).argmax(-1) + prior.layout.span(level)[0]
        assert torch.equal(likeliest, sequence[:, position])


@torch.no_grad()
def test_frequencies_of_drawn_ids_are_the_probabilities() -> None:
    prior = make_prior(scale=5.0, classes=())
    ids = draw(prior, 4000)
    first = torch.bincount(prior.layout.flatten(ids)[:, 0], minlength=5) / 4000
    everything = torch.zeros(5, 2, 2, 1, dtype=torch.long)
    everything[:, 0, 0, 0] = torch.arange(5)
    expected = (-prior.nats(everything)[:, 0]).exp()
    assert torch.allclose(first, expected, atol=0.03)
    assert expected.max() - expected.min() > 0.1  # not uniform, or the test would prove nothing


def test_temperature_and_top_k() -> None:
    prior = make_prior()
    greedy = draw(prior, 64, temperature=0.0)
    assert torch.equal(draw(prior, 64, top_k=1), greedy)
    assert torch.equal(draw(prior, 64, temperature=1e-4), greedy)
    assert torch.equal(draw(prior, 64, top_k=5), draw(prior, 64))
    assert not torch.equal(draw(prior, 64), greedy)


def test_a_seed_fixes_the_ids_and_leaves_the_global_state_alone() -> None:
    prior = make_prior()
    state = torch.get_rng_state()
    first = draw(prior, 16)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(draw(prior, 16), first)
    assert first.shape == (16, 2, 2, 1)
    assert 0 <= int(first.min()) <= int(first.max()) < 5


def test_refused() -> None:
    prior = make_prior()
    ids = torch.zeros(2, 2, 2, 1, dtype=torch.long)
    for labels, message in ((None, "needs labels"), (torch.tensor([0, 2]), "labels"), (torch.tensor([0]), "labels")):
        with pytest.raises(ValueError, match=message):
            prior.nats(ids, labels)
    with pytest.raises(ValueError, match="unconditional"):
        make_prior(classes=()).nats(ids, torch.tensor([0, 1]))
    for settings in ({"temperature": -1.0}, {"top_k": -1}):
        with pytest.raises(VqlabError, match=next(iter(settings))):
            draw(prior, 2, **settings)

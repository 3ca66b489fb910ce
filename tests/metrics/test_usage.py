import math

import numpy as np
import pytest
import torch
from torch import Tensor

from vqlab.metrics import (
    CodebookUsage,
    SoftUsage,
    count_indices,
    perplexity_from_counts,
    utilization_from_counts,
)


def slow_perplexity(counts: list[int]) -> float:
    total = sum(counts)
    return math.exp(-sum(c / total * math.log(c / total) for c in counts if c > 0))


@pytest.mark.parametrize(
    ("counts", "utilization", "perplexity"),
    [
        ([4, 4, 4, 4], 1.0, 4.0),
        ([0, 7, 0, 7], 0.5, 2.0),
        ([9, 0, 0, 0, 0], 0.2, 1.0),
        ([2, 1, 1, 0], 0.75, 2 * math.sqrt(2)),  # H = log2/2 + 2 log4/4 = 1.5 log 2
        ([3, 1], 1.0, 4 / 3**0.75),
    ],
)
def test_values_worked_by_hand(counts: list[int], utilization: float, perplexity: float) -> None:
    tensor = torch.tensor(counts)
    assert utilization_from_counts(tensor).item() == utilization
    assert perplexity_from_counts(tensor).item() == pytest.approx(perplexity, rel=1e-14)


def test_random_counts_against_slow_reference() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 2, 17, 512):
        counts = rng.integers(0, 50, size).tolist()
        counts[0] += 1
        assert perplexity_from_counts(torch.tensor(counts)).item() == pytest.approx(slow_perplexity(counts), rel=1e-12)


def test_counts_of_a_small_batch() -> None:
    metric = CodebookUsage(4)
    metric.update(torch.tensor([0, 0, 0, 1]))
    assert metric.compute()["counts"].tolist() == [3, 1, 0, 0]
    assert metric.compute()["counts"].dtype == torch.int64


def test_fresh_metric_has_no_code_used_in_advance() -> None:
    metric = CodebookUsage(131072)
    metric.update(torch.full((3, 4, 5), 5))
    result = metric.compute()
    assert result["utilization"].item() == 1 / 131072
    assert result["perplexity"].item() == 1.0
    assert result["counts"][5] == 60
    assert result["counts"].sum() == 60


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_one_code_under_autocast_has_perplexity_exactly_one(dtype: torch.dtype) -> None:
    usage, soft = CodebookUsage(8), SoftUsage(8)
    with torch.autocast("cpu", dtype=dtype):
        usage.update(torch.zeros(1000, dtype=torch.int64))
        soft.update(torch.eye(8)[0], torch.tensor(0.0), 1000)
        assert usage.compute()["perplexity"].item() == 1.0
        assert soft.compute()["soft_perplexity"].item() == 1.0
        assert soft.compute()["assignment_perplexity"].item() == 1.0


def test_autocast_and_half_change_nothing() -> None:
    indices = torch.randint(0, 300, (5000,), generator=torch.Generator().manual_seed(1))
    plain, mixed = CodebookUsage(512), CodebookUsage(512).half()
    plain.update(indices)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed.update(indices)
        result = mixed.compute()
    assert result["perplexity"].item() == plain.compute()["perplexity"].item()


@pytest.mark.parametrize("wrong", [-1, 4, 1000])
def test_index_out_of_range_is_refused_and_leaves_no_trace(wrong: int) -> None:
    metric = CodebookUsage(4)
    metric.update(torch.tensor([2]))
    with pytest.raises(ValueError, match=rf"indices must lie in 0\.\.3, got .*{wrong}"):
        metric.update(torch.tensor([[0, wrong]]))
    assert metric.compute()["counts"].tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize("values", [torch.tensor([0.0, 1.0]), torch.tensor([True])])
def test_indices_that_are_not_integers_are_refused(values: Tensor) -> None:
    with pytest.raises(ValueError, match="integers"):
        count_indices(values, 4)


def test_nothing_seen_is_zero_use_and_no_perplexity() -> None:
    metric = CodebookUsage(4)
    metric.update(torch.zeros(0, dtype=torch.int64))
    result = metric.compute()
    assert result["utilization"].item() == 0.0
    assert math.isnan(result["perplexity"].item())


def test_short_last_batch_and_batch_size_do_not_matter() -> None:
    indices = torch.randint(0, 16, (103, 3), generator=torch.Generator().manual_seed(2))
    whole, parts = CodebookUsage(16), CodebookUsage(16)
    whole.update(indices)
    for part in indices.split(10):
        parts.update(part)
    assert torch.equal(whole.compute()["counts"], parts.compute()["counts"])
    assert whole.compute()["perplexity"] == parts.compute()["perplexity"]
    assert whole.compute()["perplexity"].item() == pytest.approx(
        slow_perplexity(np.bincount(indices.flatten().numpy(), minlength=16).tolist()), rel=1e-12
    )


def test_reset_between_epochs() -> None:
    usage, soft = CodebookUsage(4), SoftUsage(4)
    usage.update(torch.tensor([0, 1]))
    soft.update(torch.tensor([0.5, 0.5, 0, 0]), 0.3, 2)
    usage.reset()
    soft.reset()
    usage.update(torch.tensor([3]))
    soft.update(torch.tensor([0, 0, 0, 1.0]), 0.0, 1)
    assert usage.compute()["counts"].tolist() == [0, 0, 0, 1]
    assert soft.compute()["soft_perplexity"].item() == 1.0
    assert soft.compute()["assignment_perplexity"].item() == 1.0


def test_state_survives_saving() -> None:
    metric = CodebookUsage(4)
    metric.persistent(True)
    metric.update(torch.tensor([1, 1, 2]))
    other = CodebookUsage(4)
    other.load_state_dict(metric.state_dict())
    other.update(torch.tensor([0]))
    assert other.counts.tolist() == [1, 2, 1, 0]


def test_merged_states_are_the_whole() -> None:
    left, right = CodebookUsage(4), CodebookUsage(4)
    left.update(torch.tensor([0, 0, 0]))
    right.update(torch.tensor([1]))
    left.merge_state(right)
    assert left.compute()["counts"].tolist() == [3, 1, 0, 0]
    soft, other = SoftUsage(2), SoftUsage(2)
    soft.update(torch.tensor([1.0, 0.0]), 0.0, 3)
    other.update(torch.tensor([0.0, 1.0]), math.log(2), 1)
    soft.merge_state(other)
    assert soft.compute()["soft_perplexity"].item() == pytest.approx(4 / 3**0.75, rel=1e-12)
    assert soft.compute()["assignment_perplexity"].item() == pytest.approx(2**0.25, rel=1e-6)


def assignments(temperature: float) -> tuple[Tensor, Tensor]:
    """q (N, K) and squared distances of 400 tokens near one of 32 prototypes."""
    generator = torch.Generator().manual_seed(3)
    prototypes = torch.randn(32, 4, generator=generator)
    tokens = prototypes[:1] + 1e-3 * torch.randn(400, 4, generator=generator)
    distances = torch.cdist(tokens.double(), prototypes.double()).square()
    return torch.softmax(-distances / temperature, 1), distances


def test_soft_use_is_another_figure_than_argmax_use() -> None:
    q, distances = assignments(temperature=1e8)
    usage, soft = CodebookUsage(32), SoftUsage(32)
    for part, d in zip(q.split(150), distances.split(150), strict=True):  # last batch is short
        usage.update(d.argmin(1))
        soft.update(part.mean(0), torch.special.entr(part).sum(1).mean(), len(part))
    assert usage.compute()["utilization"].item() == 1 / 32
    assert soft.compute()["soft_perplexity"].item() == pytest.approx(32, rel=1e-6)
    assert soft.compute()["assignment_perplexity"].item() == pytest.approx(32, rel=1e-5)


def test_soft_use_against_slow_float64_reference() -> None:
    q, _ = assignments(temperature=2.0)
    q = torch.cat([q, q.roll(5, 1)[:70]])
    soft = SoftUsage(32)
    for part in q.split(64):
        soft.update(part.mean(0), torch.special.entr(part).sum(1).mean(), len(part))
    mean = [sum(row[k] for row in q.tolist()) / len(q) for k in range(32)]
    entropies = [-sum(p * math.log(p) for p in row if p > 0) for row in q.tolist()]
    result = soft.compute()
    assert result["soft_perplexity"].item() == pytest.approx(math.exp(-sum(p * math.log(p) for p in mean if p > 0)), rel=1e-10)
    assert result["assignment_perplexity"].item() == pytest.approx(math.exp(sum(entropies) / len(entropies)), rel=1e-10)
    assert 1 < result["assignment_perplexity"] < result["soft_perplexity"] < 32


def test_soft_batch_without_tokens_adds_nothing() -> None:
    soft = SoftUsage(2)
    soft.update(torch.tensor([0.5, 0.5]), math.log(2), 4)
    soft.update(torch.full((2,), math.nan), math.nan, 0)
    assert soft.compute()["soft_perplexity"].item() == pytest.approx(2, rel=1e-12)


def test_soft_wrong_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        SoftUsage(4).update(torch.ones(5) / 5, 0.0, 1)
    with pytest.raises(ValueError, match="negative"):
        SoftUsage(4).update(torch.ones(4) / 4, 0.0, -1)
    for metric in (SoftUsage, CodebookUsage):
        with pytest.raises(ValueError, match="at least 1"):
            metric(0)

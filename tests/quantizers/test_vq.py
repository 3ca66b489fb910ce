"""The hard baseline: gradients, moving averages and revival, each worked out by hand."""

import copy
import math

import pytest
import torch

from vqlab.quantizers import VQCodebook


def with_codes(codes: list[list[float]], **settings: object) -> VQCodebook:
    table = torch.tensor(codes)
    level = VQCodebook(table.shape[1], table.shape[0], **{"init": "random", **settings}).train()
    with torch.no_grad():
        level.codebook.copy_(table)
        level.cluster_sum.copy_(table * level.cluster_size[:, None])
    return level


# -- gradients -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [0.25, 1.0, 3.0])
def test_gradient_codebook_by_hand(weight: float) -> None:
    level = with_codes([[0.0, 0.0], [4.0, 0.0]], update="gradient", commitment_weight=weight, revival_threshold=0.0)
    z = torch.tensor([[1.0, 1.0], [5.0, -1.0], [3.0, 0.0]], requires_grad=True)
    out = level(z)
    assert out.indices.tolist() == [0, 1, 1]
    # (z - e)^2: 1 1 | 1 1 | 1 0 -> mean 5/6
    assert float(out.parts["commitment"]) == pytest.approx(5 / 6)
    assert float(out.parts["distortion"]) == pytest.approx(5 / 3)
    assert out.loss.item() == pytest.approx((1 + weight) * 5 / 6)
    out.loss.backward()
    # d/dz of weight mean (z - e)^2 = weight 2 (z - e) / 6: the weight multiplies the encoder's term only.
    torch.testing.assert_close(z.grad, weight * torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 0.0]]) / 3)
    torch.testing.assert_close(level.codebook.grad, torch.tensor([[-1.0, -1.0], [0.0, 1.0]]) / 3)


def test_ema_codebook_has_only_the_commitment_loss() -> None:
    level = with_codes([[0.0, 0.0], [4.0, 0.0]], commitment_weight=0.5)
    z = torch.tensor([[1.0, 1.0], [5.0, -1.0]], requires_grad=True)
    out = level(z)
    assert out.loss.item() == pytest.approx(0.5 * 1.0)
    out.loss.backward()
    torch.testing.assert_close(z.grad, 0.5 * torch.tensor([[1.0, 1.0], [1.0, -1.0]]) / 2)
    assert not level.codebook.requires_grad
    assert level.codebook_parameters() == []


@pytest.mark.parametrize("update", ["ema", "gradient"])
def test_straight_through(update: str) -> None:
    level = VQCodebook(3, 8, update=update).train()
    z = torch.randn(20, 3, requires_grad=True)
    out = level(z)
    torch.testing.assert_close(out.quantized, level.codes[out.indices])
    weight = torch.randn(20, 3)
    (out.quantized * weight).sum().backward()
    assert torch.equal(z.grad, weight)
    assert level.codebook.grad is None


@pytest.mark.parametrize("update", ["ema", "gradient"])
def test_no_commitment_no_encoder_gradient(update: str) -> None:
    level = VQCodebook(3, 8, update=update, commitment_weight=0.0).train()
    z = torch.randn(20, 3, requires_grad=True)
    level(z).loss.backward()
    assert torch.count_nonzero(z.grad) == 0


# -- moving averages -----------------------------------------------------------------------------------------


def test_moving_averages_by_hand_over_two_steps() -> None:
    level = with_codes([[0.0], [10.0], [99.0]], ema_decay=0.9, revival_threshold=0.0)
    size, total, codes = [1.0, 1.0, 1.0], [0.0, 10.0, 99.0], [0.0, 10.0, 99.0]
    for batch in ([1.0, 2.0, 9.0], [-1.0, 8.0, 12.0, 0.5]):
        level(torch.tensor(batch)[:, None])
        assert level.codebook.flatten().tolist() == pytest.approx(codes)  # nothing moves before after_step
        level.after_step()
        for k in range(3):
            mine = [x for x in batch if min(range(3), key=lambda j: abs(x - codes[j])) == k]
            size[k] = 0.9 * size[k] + 0.1 * len(mine)
            total[k] = 0.9 * total[k] + 0.1 * sum(mine)
        codes = [t / s for t, s in zip(total, size, strict=True)]
        assert level.cluster_size.tolist() == pytest.approx(size)
        assert level.codebook.flatten().tolist() == pytest.approx(codes, rel=1e-6)
    assert codes[0] == pytest.approx((0.9 * 0.3 + 0.1 * -0.5) / (0.9 * 1.1 + 0.1 * 2))
    assert codes[2] == pytest.approx(99.0)


def test_batch_counts() -> None:
    level = with_codes([[0.0], [1.0], [2.0]], ema_decay=0.0, revival_threshold=0.0)
    out = level(torch.tensor([[0.0], [0.1], [-0.1], [1.0]]))
    assert out.indices.tolist() == [0, 0, 0, 1]
    level.after_step()
    assert level.cluster_size.tolist() == [3.0, 1.0, 0.0]
    # A code without any tokens keeps its place; the others become the mean of theirs.
    assert level.codebook.flatten().tolist() == pytest.approx([0.0, 1.0, 2.0], abs=1e-6)


def test_accumulation_over_micro_batches_equals_one_batch_of_their_sum() -> None:
    whole = VQCodebook(3, 16, init="random", revival_threshold=0.0).train()
    parts = copy.deepcopy(whole)
    for _ in range(3):
        z = torch.randn(80, 3)
        whole(z)
        whole.after_step()
        for micro in z.split([10, 30, 20, 20]):
            parts(micro)
        parts.after_step()
        torch.testing.assert_close(parts.codebook, whole.codebook, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(parts.cluster_size, whole.cluster_size, rtol=1e-6, atol=1e-6)
        assert int(parts.step) == int(whole.step)
    assert not torch.equal(whole.codebook, VQCodebook(3, 16, init="random").codebook)


def test_a_step_without_tokens_leaves_the_codes() -> None:
    level = VQCodebook(3, 8).train()
    level(torch.randn(50, 3))
    level.after_step()
    before = level.codebook.clone()
    for _ in range(3000):  # the averages decay to nothing
        level.after_step()
    torch.testing.assert_close(level.codebook, before, rtol=1e-3, atol=1e-4)


def test_kmeans_of_tight_blobs_stays_where_it_is() -> None:
    centres = torch.tensor([[0.0, 0.0], [8.0, 0.0], [0.0, 8.0], [8.0, 8.0]])
    z = centres.repeat_interleave(50, 0) + 0.001 * torch.randn(200, 2)
    level = VQCodebook(2, 4, init="kmeans").train()
    level(z)
    before = level.codebook.clone()
    for _ in range(2):
        out = level(z)
        level.after_step()
    assert float((level.codebook - before).norm(dim=-1).max()) < 1e-3
    assert len(out.indices.unique()) == 4


# -- initialisation ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("init", ["kmeans", "data", "random"])
@pytest.mark.parametrize("update", ["ema", "gradient"])
def test_initialisation_happens_once(init: str, update: str) -> None:
    level = VQCodebook(4, 8, init=init, update=update).train()
    fresh = level.codebook.detach().clone()
    level(torch.randn(60, 4) + 7)
    first = level.codebook.detach().clone()
    assert torch.equal(first, fresh) == (init == "random")
    level(torch.randn(60, 4) - 7)
    assert torch.equal(level.codebook.detach(), first)
    assert bool(level.initialised)


# -- revival -------------------------------------------------------------------------------------------------


def test_revival_replaces_exactly_the_dead_codes_by_tokens_of_the_batch() -> None:
    level = with_codes([[0.0, 0.0], [5.0, 5.0], [900.0, 0.0], [0.0, 900.0]], revival_threshold=0.5, revival_interval=3, ema_decay=0.5)
    z = torch.tensor([[0.0, 0.1], [5.0, 5.1], [5.1, 5.0], [0.1, 0.0]])
    for step in range(3):
        assert level.codebook[2:].flatten().tolist() == [900.0, 0.0, 0.0, 900.0], step
        level(z)
        level.after_step()
    assert all((z == row).all(-1).any() for row in level.codebook[2:])
    assert int(level.revived) == 2
    assert float(level.codebook[:2].max()) < 6
    assert level.cluster_size[2:].tolist() == pytest.approx([float(level.cluster_size[2])] * 2)
    torch.testing.assert_close(level.cluster_sum / level.cluster_size[:, None], level.codebook)
    assert float(level(z).parts["revived"]) == 2.0


def test_few_live_tokens_many_dead_codes() -> None:
    level = with_codes([[float(1000 * i), 0.0] for i in range(13)], revival_threshold=0.5, revival_interval=1, ema_decay=0.1)
    z = torch.tensor([[0.0, 0.0], [1000.0, 0.0], [2000.0, 0.0]])
    level(z)
    level.after_step()
    assert int(level.revived) == 10
    assert torch.isfinite(level.codebook).all()
    assert all((z == row).all(-1).any() for row in level.codebook[3:])


def test_revival_does_not_replace_codes_in_normal_use() -> None:
    level = VQCodebook(4, 256, revival_threshold=0.9, revival_interval=1).train()
    replaced = []
    for _ in range(20):
        before = int(level.revived)
        level(torch.randn(64, 4))
        level.after_step()
        replaced.append(int(level.revived) - before)
    assert max(replaced) < 256
    assert sum(replaced) < 20 * 256 / 2


def test_the_default_revival_gives_codes_time() -> None:
    level = VQCodebook(4, 256).train()
    for _ in range(19):
        level(torch.randn(64, 4))
        level.after_step()
    assert int(level.revived) == 0


@pytest.mark.parametrize("update", ["ema", "gradient"])
def test_revival_brings_unused_codes_into_use(update: str) -> None:
    level = VQCodebook(2, 64, update=update, init="random", revival_threshold=0.1, revival_interval=5).train()
    with torch.no_grad():
        level.codebook.mul_(0.01).add_(50)
    z = torch.randn(1000, 2)
    start = len(level.encode(z).unique())
    for _ in range(60):
        level(z)
        level.after_step()
    assert start < 8
    assert len(level.encode(z).unique()) > 48


def test_no_revival_when_switched_off() -> None:
    level = with_codes([[0.0], [500.0]], revival_threshold=0.0, revival_interval=1, ema_decay=0.0)
    for _ in range(10):
        level(torch.zeros(4, 1))
        level.after_step()
    assert int(level.revived) == 0
    assert level.codebook.flatten().tolist() == [0.0, 500.0]


def test_a_resumed_run_revives_with_the_same_tokens() -> None:
    def run(level: VQCodebook, first: int, last: int) -> None:
        for step in range(first, last):
            level(torch.randn(40, 3, generator=torch.Generator().manual_seed(step)))
            level.after_step()

    settings = {"revival_threshold": 0.5, "revival_interval": 3, "ema_decay": 0.7}
    one = VQCodebook(3, 64, **settings).train()
    run(one, 0, 5)
    state = copy.deepcopy(one.state_dict())
    run(one, 5, 25)
    assert int(one.revived) > int(state["revived"])
    torch.manual_seed(999)  # another process
    two = VQCodebook(3, 64, **settings).train()
    two.load_state_dict(state)
    run(two, 5, 25)
    assert torch.equal(one.codebook, two.codebook)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"update": "adam"}, "update"),
        ({"init": "pca"}, "init"),
        ({"ema_decay": 1.0}, "ema_decay"),
        ({"ema_decay": -0.1}, "ema_decay"),
        ({"ema_decay": math.nan}, "ema_decay"),
        ({"commitment_weight": -0.1}, "commitment_weight"),
        ({"commitment_weight": math.nan}, "commitment_weight"),
        ({"revival_threshold": 2.0}, "revival_threshold"),
        ({"revival_threshold": -0.1}, "revival_threshold"),
        ({"revival_interval": 0}, "revival_interval"),
    ],
)
def test_refused_settings(settings: dict, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        VQCodebook(4, 8, **settings)

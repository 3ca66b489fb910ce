"""The order of the images and how it is shared out to the ranks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vqlab.data.order import batch_sizes, epoch_order, seeded_generator
from vqlab.errors import VqlabError


def test_order_is_a_permutation_that_depends_on_seed_and_epoch() -> None:
    order = epoch_order(1000, seed=3, epoch=5, shuffle=True)
    assert order.sort().values.tolist() == list(range(1000))
    assert torch.equal(order, epoch_order(1000, seed=3, epoch=5, shuffle=True))
    for seed, epoch in ((3, 6), (4, 5), (5, 3)):
        assert not torch.equal(order, epoch_order(1000, seed, epoch, shuffle=True))


def test_order_without_shuffle() -> None:
    assert epoch_order(5, seed=3, epoch=5, shuffle=False).tolist() == [0, 1, 2, 3, 4]


def test_generators_of_different_keys_are_unrelated() -> None:
    keys = [(0, 0), (0, 1), (1, 0), (0, 0, 1), (1, 1, 0)]
    draws = {tuple(torch.randint(0, 1 << 30, (4,), generator=seeded_generator(*key)).tolist()) for key in keys}
    assert len(draws) == len(keys)


@settings(max_examples=300, deadline=None)
@given(count=st.integers(1, 200), batch_size=st.integers(1, 20), world_size=st.integers(1, 7), drop=st.booleans())
def test_ranks_have_equally_many_batches_that_hold_every_image(count: int, batch_size: int, world_size: int, drop: bool) -> None:
    try:
        sizes = [batch_sizes(count, batch_size, rank, world_size, drop) for rank in range(world_size)]
    except VqlabError:
        one_by_one = batch_size == 1 and count % world_size != 0
        assert count < batch_size * world_size if drop else count < world_size or one_by_one
        return
    assert len({len(s) for s in sizes}) == 1
    assert all(1 <= size <= batch_size for s in sizes for size in s)
    if drop:
        assert {size for s in sizes for size in s} == {batch_size}
        assert len(sizes[0]) == count // (batch_size * world_size)
    else:
        assert [sum(s) for s in sizes] == [len(range(r, count, world_size)) for r in range(world_size)]
        assert len(sizes[0]) == -(-count // (batch_size * world_size))


def test_a_rank_with_nothing_left_takes_one_image_from_the_batch_before() -> None:
    # 9 images, 2 ranks, batches of 4: rank 0 owns 5, rank 1 owns 4.
    assert batch_sizes(9, 4, 0, 2, False) == (4, 1)
    assert batch_sizes(9, 4, 1, 2, False) == (3, 1)


def test_impossible_divisions_are_refused() -> None:
    with pytest.raises(VqlabError, match="do not fill one batch"):
        batch_sizes(7, 4, 0, 2, True)
    with pytest.raises(VqlabError, match="2 images cannot be shared out to 3"):
        batch_sizes(2, 4, 0, 3, False)
    for rank in range(3):
        with pytest.raises(VqlabError, match="one by one"):
            batch_sizes(10, 1, rank, 3, False)

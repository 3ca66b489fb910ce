"""The batch loader: what it yields, when, and where it goes on after a stop."""

from collections import Counter

import pytest
import torch

from vqlab.data import BatchLoader, ImageBatch, ImageSplit
from vqlab.errors import VqlabError


def numbered_split(count: int) -> ImageSplit:
    """Noise images whose labels are their numbers."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (count, 3, 8, 8), generator=generator).to(torch.uint8)
    return ImageSplit(images, torch.arange(count))


def make(count: int = 23, batch_size: int = 5, **options: object) -> BatchLoader:
    arguments: dict = {"shuffle": True, "augment": True, "seed": 11} | options
    return BatchLoader(numbered_split(count), batch_size, **arguments)


def same(first: list[ImageBatch], second: list[ImageBatch]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(a.images, b.images) and torch.equal(a.labels, b.labels) for a, b in zip(first, second, strict=True)
    )


def labels(batches: list[ImageBatch]) -> list[int]:
    return [label for batch in batches for label in batch.labels.tolist()]


def test_batches_have_the_images_that_belong_to_the_labels() -> None:
    split = numbered_split(23)
    loader = BatchLoader(split, 5, shuffle=True, augment=False, seed=0)
    batches = list(loader)
    assert [len(batch.labels) for batch in batches] == [5, 5, 5, 5, 3]
    assert len(loader) == 5
    for images, numbers in batches:
        assert images.dtype == torch.uint8
        assert numbers.dtype == torch.int64
        assert torch.equal(images, split.images[numbers])


def test_in_order_without_shuffle_every_epoch() -> None:
    loader = make(shuffle=False, augment=False)
    assert labels(list(loader)) == list(range(23))
    assert labels(list(loader)) == list(range(23))


@pytest.mark.parametrize(("count", "batch_size", "world_size"), [(10, 3, 1), (10, 3, 3), (9, 4, 2), (100, 8, 7)])
def test_each_image_once_an_epoch_over_all_ranks(count: int, batch_size: int, world_size: int) -> None:
    ranks = [make(count, batch_size, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert len({len(loader) for loader in ranks}) == 1
    for _ in range(2):
        seen = Counter(number for loader in ranks for number in labels(list(loader)))
        assert seen == Counter(range(count))


def test_the_ranks_together_see_the_batches_of_one_large_loader() -> None:
    large = list(make(48, 12, augment=False))
    ranks = [list(make(48, 4, augment=False, rank=rank, world_size=3)) for rank in range(3)]
    for number, batch in enumerate(large):
        together = sorted(label for rank in ranks for label in rank[number].labels.tolist())
        assert together == sorted(batch.labels.tolist())


def test_drop_last_has_full_batches_only() -> None:
    loader = make(drop_last=True)
    batches = list(loader)
    assert len(loader) == 4
    assert [len(batch.labels) for batch in batches] == [5, 5, 5, 5]
    assert len(set(labels(batches))) == 20


def test_two_epochs_differ_and_two_loaders_of_one_seed_agree() -> None:
    loader, twin, other = make(), make(), make(seed=12)
    first, second = list(loader), list(loader)
    assert labels(first) != labels(second)
    assert same(first, list(twin))
    assert same(second, list(twin))
    assert labels(first) != labels(list(other))


def test_augmentation_differs_by_epoch_batch_and_rank() -> None:
    split = ImageSplit(numbered_split(1).images.expand(64, -1, -1, -1).contiguous(), torch.zeros(64).long())

    def batches(rank: int) -> list[ImageBatch]:
        loader = BatchLoader(split, 16, shuffle=False, augment=True, seed=0, rank=rank, world_size=2)
        return [*loader, *loader]  # two epochs of two batches

    images = [batch.images.numpy().tobytes() for rank in range(2) for batch in batches(rank)]
    assert len(images) == 8
    assert len(set(images)) == 8


def test_the_global_random_state_is_neither_read_nor_changed() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = list(make())
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert same(first, list(make()))


@pytest.mark.parametrize("stop", range(1, 10))
def test_resuming_gives_exactly_the_batches_that_were_left(stop: int) -> None:
    whole = make()
    expected = [*whole, *whole]  # two epochs of five batches

    stopped = make()
    taken: list[ImageBatch] = []
    iterator = iter(stopped)
    while len(taken) < stop:
        batch = next(iterator, None)
        if batch is None:
            iterator = iter(stopped)
        else:
            taken.append(batch)
    state = stopped.state_dict()
    assert state == {"epoch": stop // 5, "batch": stop % 5}

    resumed = make()
    resumed.load_state_dict(state)
    rest = list(resumed)
    if stop < 5:
        rest += list(resumed)
    assert same(taken + rest, expected)


def test_the_state_is_at_the_next_epoch_once_the_last_batch_is_handed_out() -> None:
    loader = make()
    iterator = iter(loader)
    for _ in range(len(loader)):
        next(iterator)
    assert loader.state_dict() == {"epoch": 1, "batch": 0}
    assert next(iterator, None) is None
    assert loader.state_dict() == {"epoch": 1, "batch": 0}


def test_making_iterators_does_not_move_the_state() -> None:
    loader = make()
    loader.load_state_dict({"epoch": 2, "batch": 3})
    iter(loader)
    iter(loader)
    assert loader.state_dict() == {"epoch": 2, "batch": 3}
    assert len(list(loader)) == 2


def test_a_pass_left_in_the_middle_is_followed_by_a_complete_one() -> None:
    loader = make(shuffle=False, augment=False)
    for _ in loader:
        break
    assert labels(list(loader)) == list(range(23))
    assert loader.state_dict() == {"epoch": 2, "batch": 0}


@pytest.mark.parametrize("state", [{}, {"epoch": 0}, {"epoch": -1, "batch": 0}, {"epoch": 0, "batch": 5}, None])
def test_a_state_of_something_else_is_refused(state: dict) -> None:
    loader = make()
    with pytest.raises(VqlabError):
        loader.load_state_dict(state)
    assert loader.state_dict() == {"epoch": 0, "batch": 0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"seed": -1}, "seed"),
        ({"rank": 2, "world_size": 2}, "rank"),
        ({"count": 0}, "no images"),
        ({"batch_size": 24, "drop_last": True}, "do not fill one batch"),
    ],
)
def test_contradictory_sizes_are_refused(options: dict, message: str) -> None:
    with pytest.raises(VqlabError, match=message):
        make(**options)

"""Reading ahead: in order, errors in their place, bounded, and stopped at once."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from vqlab.data import ImageFileError
from vqlab.tokens.ahead import _Budget, read_ahead
from vqlab.tokens.batches import batches_of_one_size


def read(i: int) -> torch.Tensor:
    if i % 5 == 3:
        raise ImageFileError(f"{i} is bad")
    if i % 5 == 4:
        raise PermissionError("no")
    time.sleep(0.001 * (i % 3))
    return torch.full((3, 2, 2), i, dtype=torch.uint8)


@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.parametrize("budget", [1, 100, 10**9])
def test_order_and_errors(workers: int, budget: int) -> None:
    results = list(read_ahead(read, range(40), workers=workers, depth=8, budget=budget))
    assert [number for number, _ in results] == list(range(40))
    for number, result in results:
        if number % 5 == 3:
            assert result == f"{number} is bad"
        elif number % 5 == 4:
            assert result == "PermissionError: no"
        else:
            assert isinstance(result, torch.Tensor)
            assert int(result[0, 0, 0]) == number


def test_memory_is_bounded() -> None:
    """No more than the budget and one image per thread wait to be fetched."""
    lock, alive, most = threading.Lock(), 0, 0

    def large(i: int) -> torch.Tensor:
        nonlocal alive, most
        with lock:
            alive += 1
            most = max(most, alive)
        return torch.zeros(1000, dtype=torch.uint8)

    for _ in read_ahead(large, range(100), workers=3, depth=90, budget=5000):
        time.sleep(0.0005)
        with lock:
            alive -= 1
    assert 4 <= most <= 5 + 3 + 1


def test_leaving_early_stops_the_threads() -> None:
    before = threading.active_count()
    pictures = read_ahead(read, range(10**6), workers=3, depth=50, budget=10)
    next(pictures)
    pictures.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def pictures(*shapes: tuple[int, int]) -> list[tuple[int, torch.Tensor]]:
    return [(i, torch.zeros(3, *shape, dtype=torch.uint8)) for i, shape in enumerate(shapes)]


def test_batches_have_one_size_each() -> None:
    a, b = (4, 4), (4, 8)
    found = batches_of_one_size(pictures(a, b, a, a, b, a), 3)
    assert [batch.numbers for batch in found] == [[0, 2, 3], [1, 4], [5]]


def test_large_images_make_small_batches() -> None:
    found = list(batches_of_one_size(pictures(*[(4, 4)] * 5, (100, 100)), 256, batch_pixels=32))
    assert [batch.numbers for batch in found] == [[0, 1], [2, 3], [5], [4]]


def test_many_sizes_do_not_wait_for_ever() -> None:
    shapes = [(1, n) for n in range(1, 200)]
    held = most = 0
    for number, batch in enumerate(batches_of_one_size(pictures(*shapes), 8, waiting_bytes=3000)):
        assert len(batch.images) == 1
        held += batch.bytes
        most = max(most, number)
    assert held == 3 * sum(range(1, 200))


def test_the_next_image_has_room_though_later_ones_have_filled_the_budget() -> None:
    budget = _Budget(1)
    budget.add(5)  # of place 1, whose thread was quicker
    thread = threading.Thread(target=budget.wait, args=(0,), daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive()
    late = threading.Thread(target=budget.wait, args=(2,), daemon=True)
    late.start()
    late.join(0.05)
    assert late.is_alive()
    budget.close()
    late.join(5)
    assert not late.is_alive()

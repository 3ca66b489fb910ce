"""Work done ahead of its use."""

import threading
from collections.abc import Callable
from functools import partial

import pytest

from vqlab.data.ahead import run_ahead


@pytest.mark.parametrize("depth", [0, 1, 3, 100])
def test_results_in_order(depth: int) -> None:
    assert list(run_ahead((partial(pow, i, 2) for i in range(20)), depth)) == [i * i for i in range(20)]
    assert list(run_ahead([], depth)) == []


@pytest.mark.parametrize("depth", [0, 2])
def test_an_error_comes_at_its_turn(depth: int) -> None:
    jobs: list[Callable[[], float]] = [lambda: 1.0, lambda: 1 / 0, lambda: 2.0]
    results = run_ahead(jobs, depth)
    assert next(results) == 1.0
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_no_more_than_the_depth_is_begun_and_leaving_ends_the_thread() -> None:
    begun: list[int] = []
    results = run_ahead((partial(begun.append, i) for i in range(100)), 2)
    next(results)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert len(begun) <= 4
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ahead")]

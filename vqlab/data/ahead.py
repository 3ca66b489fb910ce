"""Work done ahead of its use, in another thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def run_ahead(jobs: Iterable[Callable[[], T]], depth: int) -> Iterator[T]:
    """The results of the jobs, in order; up to `depth` of them are computed before they are asked for, one after the other.

    depth 0 computes each when it is asked for. An error of a job is raised at its turn.
    """
    if depth == 0:
        for job in jobs:
            yield job()
        return
    waiting: deque[Future[T]] = deque()
    pool = ThreadPoolExecutor(1, thread_name_prefix="ahead")
    try:
        for job in jobs:
            waiting.append(pool.submit(job))
            if len(waiting) > depth:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)

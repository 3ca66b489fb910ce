"""Reading in threads ahead of use, in order, within a budget of memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from torch import Tensor

from vqlab.data.read import ImageFileError


class _Budget:
    """Bytes of results that nobody has fetched yet."""

    def __init__(self, limit: int) -> None:
        self._limit, self._held, self._fetched, self._changed, self._closed = limit, 0, 0, threading.Condition(), False

    def wait(self, place: int) -> None:
        """Until there is room for the result at this place of the order.

        The one to be fetched next has room always: later ones may have filled the budget before it came to ask.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._held < self._limit or place <= self._fetched or self._closed)

    def add(self, size: int) -> None:
        with self._changed:
            self._held += size
            self._changed.notify_all()

    def fetched(self, size: int) -> None:
        """The next result has been taken out."""
        with self._changed:
            self._held -= size
            self._fetched += 1
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def read_or_reason(read: Callable[[int], Tensor], number: int) -> Tensor | str:
    """The image, or why there is none."""
    try:
        return read(number)
    except ImageFileError as error:
        return str(error)
    except (OSError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"


def read_ahead(
    read: Callable[[int], Tensor], numbers: Iterable[int], *, workers: int, depth: int, budget: int
) -> Generator[tuple[int, Tensor | str], None, None]:
    """(number, image or reason) of every number, in order, read by `workers` threads; 0 reads each when it is asked for.

    depth: at most so many are read or asked for ahead.  budget: reading pauses while so many bytes of images wait to be fetched.
    """
    if workers == 0:
        for number in numbers:
            yield number, read_or_reason(read, number)
        return
    held = _Budget(budget)

    def work(place: int, number: int) -> Tensor | str:
        held.wait(place)
        result = read_or_reason(read, number)
        held.add(_size(result))
        return result

    waiting: deque[tuple[int, Future[Tensor | str]]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="read")

    def fetch() -> tuple[int, Tensor | str]:
        number, future = waiting.popleft()
        result = future.result()
        held.fetched(_size(result))
        return number, result

    try:
        for place, number in enumerate(numbers):
            waiting.append((number, pool.submit(work, place, number)))
            if len(waiting) > depth:
                yield fetch()
        while waiting:
            yield fetch()
    finally:
        held.close()
        pool.shutdown(cancel_futures=True)


def _size(result: Tensor | str) -> int:
    return result.numel() if isinstance(result, Tensor) else 0

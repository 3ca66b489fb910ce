"""Progress bars that stay away from short work and from standard output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")

DELAY_SECONDS = 2.0


def progress(items: Iterable[T], description: str, unit: str = "batch", total: int | None = None, initial: int = 0) -> Iterator[T]:
    """The items, with a bar on stderr once DELAY_SECONDS have passed; the bar is wiped at the end."""
    return iter(tqdm(items, desc=description, unit=unit, total=total, initial=initial, leave=False, delay=DELAY_SECONDS))

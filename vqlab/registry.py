"""A small typed registry: names to classes, with errors that list the choices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from vqlab.errors import VqlabError

T = TypeVar("T")


class Registry(Generic[T]):
    """Maps the names users write to what they stand for; looking up an unknown name raises VqlabError with the known ones."""

    def __init__(self, what: str, entries: dict[str, T]) -> None:
        self.what = what
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            raise VqlabError(f"unknown {self.what} {name!r}: choose from {', '.join(self)}")
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

"""Names to classes; unknown names list the choices."""

import pytest

from vqlab.errors import VqlabError
from vqlab.registry import Registry


def test_look_up() -> None:
    registry = Registry("colour", {"red": 1, "blue": 2})
    assert registry["red"] == 1
    assert list(registry) == ["blue", "red"]
    assert len(registry) == 2
    assert "red" in registry
    assert "green" not in registry


@pytest.mark.parametrize("name", ["green", "", "Red", "red "])
def test_unknown_names_list_the_choices(name: str) -> None:
    with pytest.raises(VqlabError, match=rf"unknown colour '{name}': choose from blue, red"):
        Registry("colour", {"red": 1, "blue": 2})[name]


def test_the_callers_mapping_is_copied() -> None:
    entries = {"red": 1}
    registry = Registry("colour", entries)
    entries["green"] = 3
    assert list(registry) == ["red"]

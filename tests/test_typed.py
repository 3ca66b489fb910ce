"""Which values fit which declared types."""

from __future__ import annotations

from typing import Any

import pytest

from vqlab.typed import check_types, fits


@pytest.mark.parametrize(
    ("hint", "good", "bad"),
    [
        (int, [0, -3, 2**70], [True, 1.0, "1", None, [1]]),
        (float, [0, 1.5, float("inf"), float("nan")], [False, "1.5", None, 1j]),
        (str, ["", "x"], [1, None, b"x", ["x"]]),
        (bool, [True, False], [0, 1, "true", None]),
        (str | None, ["x", None], [1, []]),
        (int | list[int], [1, [], [1, 2]], [True, [1.5], ["1"], [[1]], {1: 2}, None]),
        (dict[str, Any], [{}, {"a": 1}], [[], None, "x"]),
    ],
)
def test_fits(hint: Any, good: list[Any], bad: list[Any]) -> None:
    assert [value for value in good if not fits(value, hint)] == []
    assert [value for value in bad if fits(value, hint)] == []


def test_the_first_wrong_value_is_named() -> None:
    hints = {"a": int, "b": int | list[int]}
    check_types({"a": 1, "b": [2], "unknown": object()}, hints)
    with pytest.raises(TypeError, match=r"^optim\.b must be of type int \| list\[int\], got 'x'$"):
        check_types({"a": 1, "b": "x"}, hints, "optim.")
    with pytest.raises(TypeError, match=r"^a must be of type int, got .{97}\.\.\.$"):
        check_types({"a": "x" * 1000}, hints)

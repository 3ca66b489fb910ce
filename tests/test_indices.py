"""What counts as an index of a code."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vqlab.indices import check_indices


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8])
def test_empty_and_full_range_are_accepted(dtype: torch.dtype) -> None:
    check_indices(torch.zeros(0, 3, dtype=dtype), 4)
    check_indices(torch.tensor([[0], [3]], dtype=dtype), 4)


@pytest.mark.parametrize(("values", "found"), [([0, -1], "-1..0"), ([4], "4..4"), ([[1], [2**40]], f"1..{2**40}")])
def test_out_of_range(values: list[int], found: str) -> None:
    with pytest.raises(ValueError, match=rf"indices must lie in 0\.\.3, got {found}"):
        check_indices(torch.tensor(values), 4)


@pytest.mark.parametrize("values", [torch.tensor([0.0]), torch.tensor([True]), torch.tensor([1j])])
def test_no_integers(values: Tensor) -> None:
    with pytest.raises(ValueError, match=f"indices must be integers, got {values.dtype}"):
        check_indices(values, 4)

"""What a split accepts."""

import pytest
import torch

from vqlab.data import ImageSplit
from vqlab.errors import VqlabError


def test_a_strided_split_is_made_contiguous_with_the_same_values() -> None:
    images = torch.arange(2 * 4 * 4 * 3, dtype=torch.uint8).view(2, 4, 4, 3).permute(0, 3, 1, 2)
    split = ImageSplit(images, torch.tensor([1, 0]))
    assert split.images.is_contiguous()
    assert torch.equal(split.images, images)
    assert len(split) == 2


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(2, 3, 4, 4), torch.zeros(2).long(), r"got float32 \(2, 3, 4, 4\)"),
        (torch.zeros(2, 4, 4, 3, dtype=torch.uint8), torch.zeros(2).long(), r"got uint8 \(2, 4, 4, 3\)"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2).long(), r"got uint8 \(2, 1, 4, 4\)"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(3).long(), r"labels .* got int64 \(3,\)"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(2), r"labels .* got float32 \(2,\)"),
    ],
)
def test_other_types_and_shapes_are_refused(images: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(VqlabError, match=message):
        ImageSplit(images, labels)

"""Augmentation against a slow reference that really pads, crops and flips."""

import pytest
import torch
import torch.nn.functional as F

from vqlab.data import random_crop_flip
from vqlab.errors import VqlabError

B, C, H, W = 64, 3, 32, 32


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randint(0, 256, (B, C, H, W), generator=torch.Generator().manual_seed(7)).to(torch.uint8)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def all_crops(image: torch.Tensor) -> dict[tuple[int, int, bool], torch.Tensor]:
    padded = F.pad(image[None].float(), (4, 4, 4, 4), mode="reflect")[0].to(torch.uint8)
    crops = {}
    for top in range(9):
        for left in range(9):
            crop = padded[:, top : top + H, left : left + W]
            crops[top, left, False] = crop
            crops[top, left, True] = crop.flip(-1)
    return crops


def choice(image: torch.Tensor, augmented: torch.Tensor) -> tuple[int, int, bool]:
    found = [key for key, crop in all_crops(image).items() if torch.equal(crop, augmented)]
    assert len(found) == 1
    return found[0]


def test_each_image_is_one_crop_of_the_reflect_padded_image_flipped_or_not(images: torch.Tensor) -> None:
    augmented = random_crop_flip(images, generator())
    assert augmented.shape == images.shape
    assert augmented.dtype == torch.uint8
    choices = [choice(image, result) for image, result in zip(images, augmented, strict=True)]
    # 64 draws: every image has its own, all nine places occur both ways, and about half are flipped.
    assert len(set(choices)) > 40
    assert {top for top, _, _ in choices} == set(range(9))
    assert {left for _, left, _ in choices} == set(range(9))
    assert 16 <= sum(flipped for _, _, flipped in choices) <= 48


def test_the_generator_decides_alone(images: torch.Tensor) -> None:
    before = torch.get_rng_state()
    first = random_crop_flip(images, generator(1))
    assert torch.equal(first, random_crop_flip(images, generator(1)))
    assert not torch.equal(first, random_crop_flip(images, generator(2)))
    assert torch.equal(torch.get_rng_state(), before)


def test_sides_of_different_length_and_strided_input() -> None:
    images = torch.arange(2 * 3 * 9 * 13).reshape(2, 3, 9, 13)
    augmented = random_crop_flip(images, generator(3))
    assert augmented.shape == images.shape
    channels_last = images.contiguous(memory_format=torch.channels_last)
    assert torch.equal(random_crop_flip(channels_last, generator(3)), augmented)


def test_images_too_small_to_pad_are_refused() -> None:
    with pytest.raises(VqlabError, match="4x32"):
        random_crop_flip(torch.zeros(1, 3, 4, 32, dtype=torch.uint8), generator())

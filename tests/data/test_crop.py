"""Rectangles of images."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vqlab.data.crop import RATIO, centre_box, cut, random_box

SIDES = st.integers(1, 300)
DRAWS = st.lists(st.floats(0, 1, exclude_max=True), min_size=4, max_size=4)


@pytest.mark.parametrize(
    ("sides", "size", "box"),
    [
        ((60, 100), (8, 8), (0, 20, 60, 60)),
        ((100, 60), (8, 8), (20, 0, 60, 60)),
        ((60, 100), (8, 16), (5, 0, 50, 100)),
        ((1, 1), (64, 32), (0, 0, 1, 1)),
        ((1, 500), (64, 64), (0, 249, 1, 1)),
    ],
)
def test_centre(sides: tuple[int, int], size: tuple[int, int], box: tuple[int, ...]) -> None:
    assert centre_box(*sides, size) == box


@given(height=SIDES, width=SIDES, size=st.tuples(SIDES, SIDES), scale=st.floats(0.01, 1), draws=DRAWS)
def test_a_random_rectangle_lies_inside(height: int, width: int, size: tuple[int, int], scale: float, draws: list[float]) -> None:
    box = random_box(height, width, size, scale, draws)
    assert box.height >= 1
    assert box.width >= 1
    assert 0 <= box.top <= height - box.height
    assert 0 <= box.left <= width - box.width


def test_random_rectangles_have_the_area_and_proportions_that_are_asked_for() -> None:
    draws = torch.rand(2000, 4, generator=torch.Generator().manual_seed(0)).tolist()
    boxes = [random_box(300, 900, (64, 64), 0.25, draw) for draw in draws]
    shares = np.array([box.height * box.width / 300**2 for box in boxes])
    ratios = np.array([box.height / box.width for box in boxes])
    assert 0.24 <= shares.min() <= 0.26
    assert 0.95 <= shares.max() <= 1.01
    assert shares.mean() == pytest.approx(0.62, abs=0.03)
    assert 1 / RATIO * 0.98 <= ratios.min() <= 1 / RATIO * 1.05
    assert ratios.max() <= RATIO * 1.02
    lefts = np.array([box.left / (900 - box.width) for box in boxes])
    assert lefts.mean() == pytest.approx(0.5, abs=0.03)


def test_full_scale_without_stretch_is_as_large_as_the_centre() -> None:
    box = random_box(60, 100, (8, 16), 1.0, [0.3, 0.5, 0.0, 0.0])
    assert box[2:] == centre_box(60, 100, (8, 16))[2:]


@pytest.mark.parametrize("size", [(16, 16), (7, 30), (40, 60)])
def test_cut_resizes_as_pillow_does(size: tuple[int, int]) -> None:
    y, x = np.mgrid[0:40, 0:60]
    pixels = np.stack([127 + 127 * np.sin(x / 6), 127 + 127 * np.cos(y / 5), 2 * x + 3 * y], -1).clip(0, 255).astype(np.uint8)
    image = torch.from_numpy(pixels.transpose(2, 0, 1).copy())
    got = cut(image, centre_box(40, 60, size), size)
    top, left, height, width = centre_box(40, 60, size)
    part = Image.fromarray(pixels).crop((left, top, left + width, top + height)).resize(size[::-1], Image.Resampling.BICUBIC)
    assert got.dtype == torch.uint8
    assert got.shape == (3, *size)
    assert np.abs(got.permute(1, 2, 0).numpy().astype(int) - np.asarray(part).astype(int)).max() <= 2


def test_nothing_to_do_changes_nothing() -> None:
    image = torch.randint(0, 256, (3, 5, 7)).to(torch.uint8)
    assert torch.equal(cut(image, centre_box(5, 7, (5, 7)), (5, 7)), image)

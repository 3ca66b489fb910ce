"""SoftVQ against its definition in float64."""

import math

import pytest
import torch

from vqlab.quantizers.peers import SoftVQCodebook


@pytest.mark.parametrize("k", [8, 3000])  # one block and several
def test_output_loss_and_gradients_follow_the_definition(k: int) -> None:
    level = SoftVQCodebook(4, k, tau=0.2, entropy_weight=0.3).train()
    z, weight = torch.randn(300, 4, requires_grad=True), torch.randn(300, 4)
    out = level(z)
    (out.loss + (out.quantized * weight).sum()).backward()

    zd, e = z.detach().double().requires_grad_(), level.embedding.detach().double().requires_grad_()
    codes = e / e.norm(dim=-1, keepdim=True)
    q = torch.softmax(zd / zd.norm(dim=-1, keepdim=True) @ codes.T / 0.2, -1)
    entropy, mean = -(q * q.log()).sum(-1).mean(), q.mean(0)
    loss = 0.3 * (entropy + (mean * mean.log()).sum())
    (loss + (q @ codes * weight.double()).sum()).backward()

    torch.testing.assert_close(out.quantized.double(), q @ codes, rtol=1e-5, atol=1e-6)
    assert float(out.loss.detach()) == pytest.approx(float(loss.detach()), rel=1e-4)
    assert float(out.parts["entropy"]) == pytest.approx(float(entropy.detach()), rel=1e-5)
    assert float(out.parts["usage_penalty"]) == pytest.approx(float((math.log(k) + (mean * mean.log()).sum()).detach()), abs=1e-5)
    assert torch.equal(out.indices, q.argmax(-1))
    torch.testing.assert_close(z.grad.double(), zd.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(level.embedding.grad.double(), e.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "value"), [("tau", 0.0), ("tau", float("inf")), ("entropy_weight", -0.1)])
def test_refused_settings(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        SoftVQCodebook(4, 8, **{name: value})

"""Gumbel-softmax quantization: the samples, their cooling, and what `eval()` does."""

import math

import pytest
import torch

from vqlab.quantizers.peers import GumbelCodebook


def test_cold_samples_follow_the_softmax_of_the_logits() -> None:
    """The Gumbel-max property: the argmax of logits plus noise is a draw from their softmax."""
    level = GumbelCodebook(3, 5, tau_start=1e-4, tau_end=1e-4).train()
    z = torch.randn(1, 3).expand(40_000, 3)
    with torch.no_grad():
        level.embedding.copy_(torch.nn.functional.one_hot(torch.arange(5), 8)[:, :3].float())
        level.embedding[3:] = torch.tensor([[-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]])  # five codes that can be told apart
        out = level(z)
        drawn = torch.cdist(out.quantized, level.codes).argmin(-1)
    share = torch.bincount(drawn, minlength=5) / 40_000
    torch.testing.assert_close(share, torch.softmax(level.logits(z[0]), -1).detach(), rtol=0, atol=0.012)
    # Two noises may come closer than the temperature: almost every draw is one code.
    single = (out.quantized - level.codes[drawn]).abs().amax(-1) < 1e-2
    assert float(single.float().mean()) > 0.999


def test_figures_and_eval_follow_the_definition() -> None:
    level = GumbelCodebook(4, 8, tau_start=0.5, kl_weight=0.3)
    z = torch.randn(100, 4)
    logits = (z @ level.logits.weight.T + level.logits.bias).double().detach()
    q = torch.softmax(logits, -1)
    entropy = float(-(q * q.log()).sum(-1).mean())
    for training in (True, False):
        out = level.train(training)(z)
        assert float(out.parts["entropy"]) == pytest.approx(entropy, rel=1e-5)
        assert float(out.loss.detach()) == pytest.approx(0.3 * (math.log(8) - entropy), rel=1e-4)
        torch.testing.assert_close(out.mean_assignment.double(), q.mean(0), rtol=1e-5, atol=1e-7)
        assert torch.equal(out.indices, logits.argmax(-1))
    torch.testing.assert_close(out.quantized.double(), torch.softmax(logits / 0.5, -1) @ level.codes.double(), rtol=1e-5, atol=1e-6)
    assert torch.equal(level(z).quantized, out.quantized)
    level.train()
    assert not torch.equal(level(z).quantized, level(z).quantized)


def test_everything_learns_from_the_decoder() -> None:
    level = GumbelCodebook(4, 8).train()
    z = torch.randn(100, 4, requires_grad=True)
    level(z).quantized.square().sum().backward()
    assert float(z.grad.norm()) > 0
    assert all(float(p.grad.norm()) > 0 for p in level.codebook_parameters())


def test_tau_cools() -> None:
    level = GumbelCodebook(4, 8, tau_start=1.0, tau_end=0.0625, tau_fraction=0.5)
    level.prepare(8)
    taus = []
    for _ in range(6):
        taus.append(float(level(torch.zeros(2, 4)).parts["tau"]))
        level.after_step()
    assert taus == pytest.approx([1.0, 0.5, 0.25, 0.125, 0.0625, 0.0625])


def test_refused_settings() -> None:
    with pytest.raises(ValueError, match="kl_weight"):
        GumbelCodebook(4, 8, kl_weight=-1.0)
    with pytest.raises(ValueError, match="tau_start"):
        GumbelCodebook(4, 8, tau_start=0.0)

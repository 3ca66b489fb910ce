"""One DDCL level: temperature, margin, running covariance, loss."""

import math

import pytest
import torch

from vqlab.assignment import covariance, critical_temperature, separation, soft_assign_reference
from vqlab.quantizers import DDCLCodebook


def trained(steps: int = 5, **settings: object) -> DDCLCodebook:
    level = DDCLCodebook(4, 16, **settings).train()
    level.prepare(20)
    for _ in range(steps):
        level(torch.randn(100, 4))
        level.after_step()
    return level


def test_forward_equals_the_reference() -> None:
    level = trained(loss_weight=0.3, usage_weight=0.2, usage_end=0.25, entropy_weight=0.1, tau_fraction=0.5).eval()
    z = torch.randn(50, 4)
    out = level(z)
    temperature = float(level.temperature)
    want = soft_assign_reference(z.double(), level.prototypes.detach().double(), temperature)
    torch.testing.assert_close(out.quantized.double(), want.centroid, rtol=1e-4, atol=1e-5)
    penalty = math.log(16) + float((want.mean_assignment * want.mean_assignment.log()).sum())
    grown = 5 / (20 * 0.5)  # the entropy term grows with the cooling: 5 of 10 steps
    spread = float(level.covariance.trace()) / 4
    expected = 0.3 * float(want.l_q) / 4 + 0.2 * (1 - 0.75 * grown) * penalty + 0.1 * grown * spread * float(want.entropy.mean())
    assert out.loss.item() == pytest.approx(expected, rel=1e-4)
    assert float(out.parts["L_q"]) == pytest.approx(float(want.l_q), rel=1e-5)
    assert float(out.parts["L_OLS"] + out.parts["V"]) == pytest.approx(float(want.l_q), rel=1e-5)
    assert float(out.parts["entropy"]) == pytest.approx(float(want.entropy.mean()), rel=1e-4)
    assert float(out.parts["free_energy"]) == pytest.approx(-temperature * float(want.log_partition.mean()), rel=1e-4)
    assert float(out.parts["usage_penalty"]) == pytest.approx(penalty, rel=1e-4)
    assert float(out.parts["tau"]) == pytest.approx(float(level.schedule.tau))
    torch.testing.assert_close(out.mean_assignment.double(), want.mean_assignment, rtol=1e-4, atol=1e-7)


def test_gradients_are_those_of_the_reference_through_tokens_and_prototypes() -> None:
    level = trained(loss_weight=1.0, usage_weight=0.0, entropy_weight=0.0).eval()
    z = torch.randn(50, 4, requires_grad=True)
    out = level(z)
    (out.loss + out.quantized.square().mean()).backward()
    z2, p2 = z.detach().double().requires_grad_(), level.prototypes.detach().double().requires_grad_()
    want = soft_assign_reference(z2, p2, float(level.temperature))
    (want.l_q / 4 + want.centroid.square().mean()).backward()
    torch.testing.assert_close(z.grad.double(), z2.grad, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(level.prototypes.grad.double(), p2.grad, rtol=1e-3, atol=1e-6)


def test_gradient_of_the_entropy_term() -> None:
    level = trained(loss_weight=0.0, usage_weight=0.0, entropy_weight=0.4, tau_fraction=0.25).eval()
    z = torch.randn(50, 4, requires_grad=True)
    level(z).loss.backward()
    z2, p2 = z.detach().double().requires_grad_(), level.prototypes.detach().double().requires_grad_()
    spread = float(level.covariance.trace()) / 4  # the tokens' variance per dimension
    (0.4 * spread * soft_assign_reference(z2, p2, float(level.temperature)).entropy.mean()).backward()
    for got, want in ((z.grad, z2.grad), (level.prototypes.grad, p2.grad)):
        torch.testing.assert_close(got.double(), want, rtol=1e-3, atol=1e-3 * float(want.abs().max()))


def test_both_other_weights_at_zero_are_the_pure_competitive_loss() -> None:
    level = trained(loss_weight=2.0, usage_weight=0.0, entropy_weight=0.0).eval()
    out = level(torch.randn(50, 4))
    assert out.loss.item() == pytest.approx(2.0 * float(out.parts["L_q"]) / 4, rel=1e-6)


def test_temperature_is_tau_times_the_total_variance() -> None:
    level = DDCLCodebook(3, 8, tau_start=0.2, tau_end=0.2).train()
    z = torch.randn(1000, 3) * torch.tensor([2.0, 1.0, 0.5])
    level(z)
    variance = float(z.var(0, correction=0).sum())
    assert float(level.temperature) == pytest.approx(0.2 * variance, rel=1e-5)
    largest = float(torch.linalg.eigvalsh(torch.cov(z.T, correction=0))[-1])
    assert float(level.margin) == pytest.approx(4 * largest / (0.2 * variance), rel=1e-5)
    assert float(level.diagnostics()["margin"]) == pytest.approx(float(level.margin))


def test_separation_is_relative_to_the_tokens_scale() -> None:
    level = trained(init="random").eval()
    with torch.no_grad():
        level.prototypes.copy_(torch.arange(64.0).view(16, 4))  # neighbours 8 apart
    scale = float(level.covariance.trace().sqrt())
    figures = level.diagnostics()
    assert float(figures["separation"]) == pytest.approx(8 / scale, rel=1e-5)
    assert float(figures["separation_nearest"]) == pytest.approx(8 / scale, rel=1e-5)
    assert all(not v.requires_grad and v.shape == () for v in figures.values())


@pytest.mark.parametrize("offset", [0.0, 100.0, 1e4])
def test_running_covariance(offset: float) -> None:
    level = DDCLCodebook(4, 8, covariance_momentum=0.25).train()
    batches = [torch.randn(200, 4) * s + offset for s in (1.0, 3.0, 0.5)]
    expected = None
    for z in batches:
        level(z)
        cov = torch.cov(z.double().T, correction=0)
        expected = cov if expected is None else 0.75 * expected + 0.25 * cov
    torch.testing.assert_close(level.covariance.double(), expected, rtol=1e-3, atol=1e-3)
    assert float(torch.linalg.eigvalsh(level.covariance)[0]) > 0


def test_the_temperature_moves_per_optimizer_step_not_per_batch() -> None:
    level = trained(steps=0)
    for _ in range(4):
        level(torch.randn(30, 4))
    assert int(level.schedule.step) == 0
    level.after_step()
    assert int(level.schedule.step) == 1


def test_state_dict_holds_temperature_and_statistics() -> None:
    level = trained(7)
    again = DDCLCodebook(4, 16)
    again.load_state_dict(level.state_dict())
    assert torch.equal(again.temperature, level.temperature)
    assert torch.equal(again.margin, level.margin)
    # Loaded prototypes are not replaced by the next batch.
    before = again.prototypes.detach().clone()
    again.train()(torch.randn(100, 4) + 9)
    assert torch.equal(before, again.prototypes.detach())


@pytest.mark.parametrize("init", ["kmeans", "data", "random"])
def test_initialisation(init: str) -> None:
    level = DDCLCodebook(4, 16, init=init).train()
    before = level.prototypes.detach().clone()
    level(torch.randn(100, 4) * 0.01 + 50)
    assert torch.equal(before, level.prototypes.detach()) == (init == "random")
    if init != "random":
        assert float((level.prototypes.detach() - 50).abs().max()) < 0.1


def test_tokens_without_variance_keep_a_positive_temperature() -> None:
    level = DDCLCodebook(4, 16).train()
    for _ in range(3):
        out = level(torch.zeros(50, 4))
        assert float(level.temperature) > 0
        assert torch.isfinite(out.loss)
        assert float(out.parts["V"]) >= 0
        assert 0 <= float(out.parts["entropy"]) <= math.log(16) + 1e-4


def test_far_prototypes_under_an_exhausted_residual_report_a_true_entropy() -> None:
    level = DDCLCodebook(4, 16, init="random").train()
    out = level(torch.zeros(50, 4))
    assert float(level.temperature) < 1e-5
    assert float(out.parts["entropy"]) == pytest.approx(0.0, abs=1e-4)
    assert float(out.parts["V"]) == 0.0


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"init": "pca"}, "init"),
        ({"loss_weight": -1.0}, "loss_weight"),
        ({"usage_weight": -1.0}, "usage_weight"),
        ({"loss_weight": math.nan}, "loss_weight"),
        ({"usage_weight": math.inf}, "usage_weight"),
        ({"covariance_momentum": 0.0}, "covariance_momentum"),
        ({"covariance_momentum": 1.1}, "covariance_momentum"),
        ({"tau_start": 0.0}, "tau_start"),
        ({"tau_shape": "step"}, "tau_shape"),
    ],
)
def test_refused_settings(settings: dict, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        DDCLCodebook(4, 8, **settings)


def test_prototypes_of_the_layer_do_not_collapse_while_the_margin_is_above_one() -> None:
    """From 0.01 apart, gradient descent on the layer's own loss separates them below T_c and merges them above."""
    z = torch.randn(256, 3) * torch.tensor([2.0, 1.0, 0.5])
    spread = {}
    for margin in (1.5, 0.7):
        level = DDCLCodebook(
            3, 8, loss_weight=3.0, usage_weight=0.0, init="random", tau_start=1.0, tau_end=1.0, tau_shape="constant"
        ).train()
        level(z)
        tau = float(level.margin) / margin
        level.schedule.start = tau
        assert float(level.margin) == pytest.approx(margin, rel=1e-5)
        with torch.no_grad():
            level.prototypes.copy_(z.mean(0) + 0.01 * torch.randn(8, 3))
        optimizer = torch.optim.SGD(level.codebook_parameters(), lr=2.0)
        for _ in range(150):
            optimizer.zero_grad()
            level(z).loss.backward()
            optimizer.step()
        spread[margin] = float((level.prototypes - level.prototypes.mean(0)).norm().detach())
    assert spread[1.5] > 0.5
    assert spread[0.7] < 1e-3


# -- strict mode ---------------------------------------------------------------------------------------------


def separation_behind_a_shrinking_encoder(keep_margin: float) -> tuple[list[float], float]:
    """Tokens shrink by 40 % a step, faster than the running covariance follows: margins for the tokens of each step, and the smallest
    distance of two prototypes in the end, relative to the tokens."""
    torch.manual_seed(0)
    settings = {"tau_start": 0.3, "tau_end": 0.3, "init": "data", "loss_weight": 1.0, "usage_weight": 0.0, "entropy_weight": 0.0}
    level = DDCLCodebook(3, 8, **settings, keep_margin=keep_margin).train()
    shape, margins = torch.tensor([2.0, 1.0, 0.5]), []
    for step in range(40):
        scale = max(0.6**step, 0.6**12)
        z = scale * shape * torch.randn(400, 3)
        out = level(z)
        margins.append(float(critical_temperature(covariance(z)) / out.parts["temperature"]))
        (gradient,) = torch.autograd.grad(out.loss, [level.prototypes])
        with torch.no_grad():
            level.prototypes.sub_(3.0 * gradient)
        level.after_step()
    return margins, float(separation(level.prototypes.detach() / scale).minimum)


def test_strict_mode_keeps_prototypes_apart_behind_an_encoder_that_shrinks() -> None:
    margins, apart = separation_behind_a_shrinking_encoder(0.0)
    assert min(margins) < 0.01
    strict, apart_strict = separation_behind_a_shrinking_encoder(1.5)
    assert min(strict) >= 1.5 * (1 - 1e-5)
    assert apart_strict > 1.0
    assert apart < 1e-3


def test_strict_mode_changes_nothing_while_the_margin_is_large() -> None:
    z, outs = torch.randn(50, 4), []
    for keep_margin in (0.0, 1.5):
        torch.manual_seed(0)
        outs.append(DDCLCodebook(4, 8, keep_margin=keep_margin).train()(z))
    free, strict = outs
    assert torch.equal(free.loss, strict.loss)
    assert torch.equal(free.quantized, strict.quantized)


@pytest.mark.parametrize("value", [-1.0, 0.5, float("inf"), float("nan")])
def test_refused_margins(value: float) -> None:
    with pytest.raises(ValueError, match="keep_margin must be 0"):
        DDCLCodebook(4, 8, keep_margin=value)

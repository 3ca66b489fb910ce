"""The identities of DDCL against loops in float64, written from the definitions."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vqlab import assignment
from vqlab.assignment import SoftAssignment, boltzmann, soft_assign_reference, squared_distances
from vqlab.fused import soft_assign

Assign = Callable[..., SoftAssignment]
BOTH = pytest.mark.parametrize("assign", [soft_assign_reference, soft_assign])


def tokens(n: int = 13, k: int = 7, d: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=draw, dtype=torch.float64), torch.randn(k, d, generator=draw, dtype=torch.float64)


def slow(z: Tensor, p: Tensor, temperature: float) -> dict[str, list]:
    """Everything by plain Python sums, from the definitions only."""
    n, (k, d) = len(z), p.shape
    zs, ps = z.tolist(), p.tolist()
    rows: dict[str, list] = {name: [] for name in ("q", "mu", "v", "ols", "l_q", "entropy", "log_partition", "index", "mean_square")}
    for i in range(n):
        distance = [sum((zs[i][c] - ps[j][c]) ** 2 for c in range(d)) for j in range(k)]
        least = min(distance)
        weight = [math.exp(-(x - least) / temperature) for x in distance]
        total = sum(weight)
        q = [w / total for w in weight]
        mu = [sum(q[j] * ps[j][c] for j in range(k)) for c in range(d)]
        rows["q"].append(q)
        rows["mu"].append(mu)
        rows["v"].append(sum(q[j] * sum((ps[j][c] - mu[c]) ** 2 for c in range(d)) for j in range(k)))
        rows["ols"].append(sum((zs[i][c] - mu[c]) ** 2 for c in range(d)))
        rows["l_q"].append(sum(q[j] * distance[j] for j in range(k)))
        rows["entropy"].append(-sum(x * math.log(x) for x in q if x > 0))
        rows["log_partition"].append(math.log(total) - least / temperature)
        rows["index"].append(distance.index(least))
        rows["mean_square"].append(sum(q[j] * sum(x**2 for x in ps[j]) for j in range(k)))
    return rows


@BOTH
@pytest.mark.parametrize("temperature", [0.05, 0.7, 3.0, 50.0])
def test_every_figure_equals_its_definition(assign: Assign, temperature: float) -> None:
    z, p = tokens()
    got = assign(z, p, temperature)
    want = slow(z, p, temperature)
    for name, value in (
        ("mu", got.centroid),
        ("v", got.variance),
        ("ols", got.residual),
        ("entropy", got.entropy),
        ("log_partition", got.log_partition),
    ):
        torch.testing.assert_close(value, torch.tensor(want[name], dtype=torch.float64), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(got.mean_assignment, torch.tensor(want["q"], dtype=torch.float64).mean(0))
    assert got.indices.tolist() == want["index"]
    assert got.indices.dtype == torch.int64


@BOTH
def test_expected_distortion_is_l_ols_plus_v(assign: Assign) -> None:
    for seed, temperature in enumerate((0.01, 0.3, 2.0, 100.0)):
        z, p = tokens(n=31, k=9, d=4, seed=seed)
        got = assign(z, p, temperature)
        expected = sum(slow(z, p, temperature)["l_q"]) / len(z)
        assert float(got.l_ols + got.v) == pytest.approx(expected, rel=1e-10)
        assert float(got.l_q) == pytest.approx(expected, rel=1e-10)


@BOTH
def test_variance_from_the_second_moment(assign: Assign) -> None:
    z, p = tokens()
    got = assign(z, p, 0.8)
    mean_square = torch.tensor(slow(z, p, 0.8)["mean_square"], dtype=torch.float64)
    torch.testing.assert_close(got.variance, mean_square - got.centroid.square().sum(-1))


@BOTH
def test_entropy_from_the_log_partition(assign: Assign) -> None:
    z, p = tokens()
    got = assign(z, p, 0.8)
    # H = log Z + E[d] / T
    torch.testing.assert_close(got.entropy, got.log_partition + (got.residual + got.variance) / 0.8)


@BOTH
def test_jacobian_of_the_centroid_is_two_over_t_times_covariance(assign: Assign) -> None:
    z, p = tokens(n=3)
    temperature = 0.6
    q = torch.tensor(slow(z, p, temperature)["q"], dtype=torch.float64)
    for i in range(3):
        jacobian = torch.autograd.functional.jacobian(lambda x: assign(x, p, temperature).centroid[0], z[i : i + 1])[:, 0]
        mean = q[i] @ p
        cov = torch.stack([q[i, j] * torch.outer(p[j] - mean, p[j] - mean) for j in range(len(p))]).sum(0)
        torch.testing.assert_close(jacobian, 2 / temperature * cov)


@BOTH
def test_free_energy_gradient_is_that_of_l_q_with_q_held_constant(assign: Assign) -> None:
    z, p = tokens()
    p.requires_grad_()
    (of_f,) = torch.autograd.grad(assignment.free_energy(assign(z, p, 0.4).log_partition, 0.4), p)
    q = torch.tensor(slow(z, p.detach(), 0.4)["q"], dtype=torch.float64)
    by_hand = torch.zeros_like(of_f)
    for n in range(len(z)):
        for k in range(len(p)):
            by_hand[k] += q[n, k] * 2 * (p.detach()[k] - z[n]) / len(z)
    torch.testing.assert_close(of_f, by_hand)


def test_free_energy_never_rises_under_small_gradient_steps() -> None:
    z, p = tokens(n=64, k=6, d=3)
    values = []
    for _ in range(100):
        p.requires_grad_()
        free = assignment.free_energy(soft_assign(z, p, 0.3).log_partition, 0.3)
        (gradient,) = torch.autograd.grad(free, p)
        values.append(free.item())
        p = (p - 0.1 * gradient).detach()
    assert all(b <= a for a, b in itertools.pairwise(values))
    assert values[-1] < values[0] - 0.1  # it did move


@BOTH
def test_cold_limit_is_the_nearest_prototype(assign: Assign) -> None:
    for dtype in (torch.float32, torch.float64):
        z, p = (x.to(dtype) for x in tokens(n=50, k=11))
        got = assign(z, p, 1e-6)
        near = p[squared_distances(z, p).argmin(-1)]
        torch.testing.assert_close(got.centroid, near)
        assert float(got.v) == 0.0
        assert float(got.entropy.abs().max()) < 1e-6


@BOTH
def test_hot_limit_is_the_mean_prototype_and_the_variance_of_the_codebook(assign: Assign) -> None:
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-4)):
        z, p = (x.to(dtype) for x in tokens(n=50, k=11))
        got = assign(z, p, 1e6)
        mean = p.mean(0)
        torch.testing.assert_close(got.centroid, mean.expand(50, -1), rtol=0, atol=1e-4)
        assert float(got.v) == pytest.approx(float((p - mean).square().sum(-1).mean()), rel=tolerance)
        torch.testing.assert_close(got.mean_assignment, torch.full_like(got.mean_assignment, 1 / 11), rtol=1e-4, atol=0)
        # The argmax stays the nearest prototype even where all shares are equal to the last digit.
        assert torch.equal(got.indices, squared_distances(z, p).argmin(-1))


@BOTH
@pytest.mark.parametrize("temperature", [0, 0.0, -1.0, -1e-9, math.nan, math.inf, torch.tensor(0.0), torch.tensor(-2.0)])
def test_refused_temperatures(assign: Assign, temperature: object) -> None:
    with pytest.raises(ValueError, match="temperature must be a positive finite number"):
        assign(*tokens(), temperature)


# -- collapse ------------------------------------------------------------------------------------------------


def spread_after_flow(factor: float, full_gradient: bool) -> float:
    """Spread of 8 prototypes started 0.01 apart after gradient flow at T = factor lambda_max, over the start's."""
    draw = torch.Generator().manual_seed(0)
    z = torch.randn(256, 3, generator=draw, dtype=torch.float64)
    z = z - z.mean(0)
    whiten = torch.linalg.inv(torch.linalg.cholesky(z.T @ z / 256))
    z = z @ whiten.T @ torch.diag(torch.tensor([2.0, 1.0, 0.5], dtype=torch.float64))  # Cov = diag(4, 1, .25)
    temperature = factor * 4.0
    p = 0.01 * torch.randn(8, 3, generator=draw, dtype=torch.float64)
    start = float((p - p.mean(0)).norm())
    for _ in range(400):
        p.requires_grad_()
        d = squared_distances(z, p)
        q = boltzmann(d, temperature)
        loss = ((q if full_gradient else q.detach()) * d).sum(-1).mean()
        (gradient,) = torch.autograd.grad(loss, p)
        p = (p - 4.0 * gradient).detach()
    return float((p - p.mean(0)).norm()) / start


@pytest.mark.parametrize(("full_gradient", "critical"), [(True, 4.0), (False, 2.0)])
def test_collapse_repels_exactly_below_the_critical_temperature(full_gradient: bool, critical: float) -> None:
    assert spread_after_flow(critical * 0.975, full_gradient) > 10
    assert spread_after_flow(critical * 1.025, full_gradient) < 1e-3


def test_free_energy_flow_has_the_boundary_of_q_held_constant() -> None:
    z, p = tokens(n=64, k=5, d=3)
    p.requires_grad_()
    d = squared_distances(z, p)
    (held,) = torch.autograd.grad((boltzmann(d, 0.9).detach() * d).sum(-1).mean(), p)
    (free,) = torch.autograd.grad(assignment.free_energy(soft_assign(z, p, 0.9).log_partition, 0.9), p)
    torch.testing.assert_close(held, free)


def test_critical_temperature_is_four_times_the_largest_eigenvalue() -> None:
    rotation = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)))[0]
    cov = rotation @ torch.diag(torch.tensor([4.0, 1.0, 0.25])) @ rotation.T
    assert float(assignment.critical_temperature(cov)) == pytest.approx(16.0, rel=1e-5)


def test_covariance_is_normalised_by_n() -> None:
    z, _ = tokens(n=40)
    torch.testing.assert_close(assignment.covariance(z), torch.cov(z.T, correction=0))
    assert torch.equal(assignment.covariance(z[:1]), torch.zeros(5, 5, dtype=torch.float64))


# -- use and separation --------------------------------------------------------------------------------------


def test_entropy_and_usage_penalty() -> None:
    assert float(assignment.entropy_of(torch.tensor([0.5, 0.25, 0.25]))) == pytest.approx(1.5 * math.log(2))
    assert float(assignment.usage_penalty(torch.full((64,), 1 / 64))) == pytest.approx(0.0, abs=1e-6)
    one = torch.zeros(64)
    one[5] = 1.0
    assert float(assignment.usage_penalty(one)) == pytest.approx(math.log(64))


def test_usage_penalty_has_a_finite_gradient_where_shares_underflow() -> None:
    share = torch.tensor([1.0, 0.0, 1e-45, 1e-30], requires_grad=True)
    assignment.usage_penalty(share).backward()
    assert torch.isfinite(share.grad).all()


@pytest.mark.parametrize("block_elements", [1, 30, 1 << 20])
def test_separation_is_the_least_distance_between_prototypes(block_elements: int) -> None:
    _, p = tokens(k=10)
    p[7] = p[2] + 1e-7  # two nearly merged prototypes, far from the origin
    p = p + 1e3
    distance = [[math.dist(p[i].tolist(), p[j].tolist()) for j in range(10) if j != i] for i in range(10)]
    got = assignment.separation(p, block_elements=block_elements)
    assert float(got.minimum) == pytest.approx(min(min(row) for row in distance), rel=1e-5)
    assert float(got.nearest_mean) == pytest.approx(sum(min(row) for row in distance) / 10)


def test_separation_of_some_prototypes_to_all_others() -> None:
    _, p = tokens(k=10)
    distance = torch.cdist(p.double(), p.double()).fill_diagonal_(math.inf).amin(-1)
    got = assignment.separation(p, rows=4)  # prototypes 0, 2, 5, 7
    assert float(got.minimum) == pytest.approx(float(distance[[0, 2, 5, 7]].min()))
    assert float(got.nearest_mean) == pytest.approx(float(distance[[0, 2, 5, 7]].mean()))
    assert float(assignment.separation(p, rows=10).nearest_mean) == pytest.approx(float(distance.mean()))


def test_separation_of_one_and_of_merged_prototypes() -> None:
    one = assignment.separation(torch.ones(1, 4))
    assert (float(one.minimum), float(one.nearest_mean)) == (math.inf, math.inf)
    assert float(assignment.separation(torch.full((5, 4), 300.3)).minimum) == 0.0


@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_log_assignments_are_the_softmax_of_distances(offset: float) -> None:
    generator = torch.Generator().manual_seed(0)
    z, p = (torch.randn(n, 5, generator=generator, dtype=torch.float64) for n in (30, 7))
    expected = torch.log_softmax(-assignment.squared_distances(z, p) / 0.3, -1)
    found = assignment.log_assignments((z + offset).float(), (p + offset).float(), 0.3)
    torch.testing.assert_close(found.double(), expected, atol=2e-3 if offset else 2e-5, rtol=1e-4)
    torch.testing.assert_close(assignment.log_assignments(z, p, 0.3), expected)
    with pytest.raises(ValueError, match="temperature"):
        assignment.log_assignments(z, p, 0.0)

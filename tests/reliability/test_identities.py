"""The identities of DDCL and what holds for every codebook, over shapes, scales, offsets, temperatures and degenerate inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from vqlab.assignment import free_energy, soft_assign_reference, squared_distances
from vqlab.fused import nearest, soft_assign
from vqlab.quantizers import CODEBOOKS, Quantizer, build_codebook

EPS = torch.finfo(torch.float32).eps
PROPERTY = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@dataclass(frozen=True)
class Problem:
    """Tokens (n, d) and prototypes (k, d) of a common scale around a common offset; duplicates: only few of the rows differ."""

    n: int
    k: int
    d: int
    scale: float = 1.0
    offset: float = 0.0
    tau: float = 0.1
    duplicates: bool = False
    seed: int = 0

    def tensors(self) -> tuple[Tensor, Tensor, float]:
        """z, p, T; T is relative to the largest squared distance (or to the scale, where there is none)."""
        draw = torch.Generator().manual_seed(self.seed)
        z, p = (torch.randn(rows, self.d, generator=draw) for rows in (self.n, self.k))
        if self.duplicates and self.n and self.k > 1:
            z, p = z[torch.arange(self.n) % 2 % self.n], p[torch.arange(self.k) % max(2, self.k // 3)]
        z, p = (x * self.scale + self.offset * (1 + 0.3 * torch.arange(self.d)) for x in (z, p))
        return z, p, self.tau * self.scale**2


SIZES = {"n": st.integers(0, 40), "k": st.integers(1, 40), "d": st.integers(1, 9), "seed": st.integers(0, 2**31)}
PROBLEMS = st.builds(
    Problem,
    scale=st.floats(-4, 4).map(lambda x: 10.0**x),
    offset=st.one_of(st.just(0.0), st.floats(-2, 4).map(lambda x: 10.0**x)),
    tau=st.floats(-3, 3).map(lambda x: 10.0**x),
    duplicates=st.booleans(),
    **SIZES,
)
#: One token, one prototype, neither tokens, all rows equal; far from 0 and at both ends of the scale.
CORNERS = (
    Problem(1, 1, 1),
    Problem(0, 5, 3),
    Problem(1, 40, 4, scale=1e-4, offset=1e4),
    Problem(40, 1, 4, scale=1e4, offset=1e4, tau=1e3),
    Problem(30, 12, 2, scale=1e4, tau=1e-3, duplicates=True),
)


def with_corners(test):
    for corner in CORNERS:
        test = example(corner)(test)
    return PROPERTY(given(PROBLEMS)(test))


@with_corners
def test_identities_of_the_soft_assignment(problem: Problem) -> None:
    z, p, temperature = problem.tensors()
    soft = soft_assign(z, p, temperature)
    exact = soft_assign_reference(z.double(), p.double(), temperature)
    fields = [soft.centroid, soft.variance, soft.residual, soft.entropy, soft.log_partition, soft.mean_assignment]
    assert all(bool(torch.isfinite(x).all()) for x in fields)
    assert soft.indices.dtype == torch.int64
    assert bool((soft.variance >= 0).all())
    assert bool((soft.entropy >= 0).all())
    assert bool((soft.entropy <= math.log(problem.k) + 1e-5).all())
    assert float(soft.mean_assignment.sum()) == pytest.approx(1.0 if problem.n else 0.0, abs=1e-5)
    if problem.n == 0:
        return
    # float32 knows logits d / T to a few units in their last place, hence shares to as much, relatively.
    d = squared_distances(z.double(), p.double())
    largest = float(d.max()) + float(p.double().var(0, correction=0).sum()) + 1e-300
    tolerance = 1e-5 + 40 * EPS * largest / temperature
    if tolerance < 0.05:
        for name in ("l_q", "l_ols", "v"):
            assert abs(float(getattr(soft, name)) - float(getattr(exact, name))) <= tolerance * largest, name
        expected = (torch.softmax(-d / temperature, -1) * d).sum(-1).mean()
        assert abs(float(soft.l_ols + soft.v - expected)) <= tolerance * largest
        assert float((soft.entropy - exact.entropy).abs().max()) <= tolerance * (1 + math.log(problem.k)) * 4
    # The free energy lies between the least distance, less what equal shares could take off it, and that distance.
    energy = float(free_energy(soft.log_partition, temperature))
    least = float(d.amin(-1).mean())
    slack = 1e-4 * (largest + temperature)
    assert least - temperature * math.log(problem.k) - slack <= energy <= least + slack
    # Centroids are means of prototypes.
    room = 4 * EPS * p.abs().amax() + 1e-5 * problem.scale
    assert bool((soft.centroid >= p.amin(0) - room).all())
    assert bool((soft.centroid <= p.amax(0) + room).all())


@with_corners
def test_ids_are_nearest_and_gradients_finite(problem: Problem) -> None:
    z, p, temperature = problem.tensors()
    d = squared_distances(z.double(), p.double())
    for ids in (nearest(z, p), soft_assign(z, p, temperature).indices):
        chosen = d.gather(1, ids[:, None])[:, 0]
        assert bool((chosen <= d.amin(-1) * (1 + 1e-12)).all())
    z, p = z.requires_grad_(), p.requires_grad_()
    soft = soft_assign(z, p, temperature)
    if problem.n:
        (soft.l_q + soft.entropy.mean() * temperature + soft.centroid.square().mean()).backward()
        assert bool(torch.isfinite(z.grad).all())
        assert bool(torch.isfinite(p.grad).all())


@PROPERTY
@given(
    kind=st.sampled_from(["ddcl", "vqvae", "rotation"]),
    levels=st.integers(1, 3),
    normalize=st.booleans(),
    problem=PROBLEMS.filter(lambda problem: problem.n > 0),
)
def test_every_figure_of_a_training_is_finite(kind: str, levels: int, normalize: bool, problem: Problem) -> None:
    torch.manual_seed(problem.seed)
    books = [build_codebook({"kind": kind, "codebook_size": problem.k}, problem.d) for _ in range(levels)]
    quantizer = Quantizer(problem.d, books, normalize=normalize).train()
    quantizer.prepare(4)
    for step in range(4):
        z = problem.tensors()[0][None]
        x = (z + step * problem.scale).requires_grad_()
        out = quantizer(x)
        out.loss.backward()
        assert bool(torch.isfinite(x.grad).all())
        for p in quantizer.codebook_parameters():
            if p.grad is not None:
                assert bool(torch.isfinite(p.grad).all())
                p.grad = None
        quantizer.after_step()
        for parts in out.parts:
            assert all(bool(torch.isfinite(value)) for value in parts.values()), parts
            if kind == "ddcl":
                assert float(parts["V"]) >= 0
                assert float(parts["L_q"]) == pytest.approx(float(parts["L_OLS"] + parts["V"]), rel=1e-6)
    assert all(bool(torch.isfinite(value.float()).all()) for value in quantizer.state_dict().values())
    quantizer.eval()
    assert torch.equal(quantizer(x.detach()).indices, quantizer.encode(x.detach()))


@pytest.mark.parametrize("kind", list(CODEBOOKS))
@pytest.mark.parametrize("normalize", [True, False])
def test_an_empty_batch_has_ids_and_vectors_of_no_tokens(kind: str, normalize: bool) -> None:
    quantizer = Quantizer(6, [build_codebook({"kind": kind, "codebook_size": 8}, 4)], normalize=normalize)
    quantizer.train()(torch.randn(3, 10, 6))
    before = {name: value.clone() for name, value in quantizer.state_dict().items()}
    for x, grid in ((torch.zeros(0, 6, 4, 3), (0, 4, 3)), (torch.zeros(0, 10, 6), (0, 10)), (torch.zeros(2, 0, 6), (2, 0))):
        with pytest.raises(ValueError, match="at least one token"):
            quantizer.train()(x)
        out = quantizer.eval()(x)
        assert out.quantized.shape == x.shape
        assert out.indices.shape == (*grid, 1)
        assert quantizer.encode(x).shape == (*grid, 1)
        assert quantizer.decode_indices(out.indices).shape == x.shape
    assert all(torch.equal(value, before[name]) for name, value in quantizer.state_dict().items())

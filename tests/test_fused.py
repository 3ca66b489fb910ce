"""The blocked assignment equals the reference, in values, gradients and memory."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vqlab.assignment import SoftAssignment, soft_assign_reference, squared_distances, usage_penalty
from vqlab.fused import maximum_rows, nearest, soft_assign

FIELDS = ("centroid", "variance", "residual", "entropy", "log_partition", "mean_assignment")


def draw(n: int, k: int, d: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator, dtype=dtype), torch.randn(k, d, generator=generator, dtype=dtype)


def assert_same(got: SoftAssignment, want: SoftAssignment, rtol: float, atol: float) -> None:
    for name in FIELDS:
        torch.testing.assert_close(
            getattr(got, name).double(),
            getattr(want, name).double(),
            rtol=rtol,
            atol=atol,
            msg=lambda m, name=name: f"{name}: {m}",
        )
    assert torch.equal(got.indices, want.indices)


@pytest.mark.parametrize("block", [1, 7, 64, 1000, 1 << 18])
@pytest.mark.parametrize(("n", "k", "d"), [(1, 1, 1), (1, 5, 3), (9, 1, 3), (37, 33, 1), (65, 96, 5), (130, 31, 7)])
def test_equals_the_reference_for_any_block(block: int, n: int, k: int, d: int) -> None:
    z, p = draw(n, k, d, dtype=torch.float64)
    assert_same(soft_assign(z, p, 0.4, block), soft_assign_reference(z, p, 0.4), rtol=1e-9, atol=1e-11)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 40),
    k=st.integers(1, 70),
    d=st.integers(1, 9),
    block=st.integers(1, 500),
    seed=st.integers(0, 99),
    log_temperature=st.floats(-3, 4),
)
def test_equals_the_reference_for_any_sizes(n: int, k: int, d: int, block: int, seed: int, log_temperature: float) -> None:
    z, p = draw(n, k, d, seed, torch.float64)
    temperature = 10.0**log_temperature
    assert_same(soft_assign(z, p, temperature, block), soft_assign_reference(z, p, temperature), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("offset", [0.0, 100.0, 1e4])
def test_a_common_offset_costs_no_digits(offset: float) -> None:
    z, p = draw(200, 48, 6)
    z, p = (z + offset).requires_grad_(), (p + offset).requires_grad_()
    exact_z, exact_p = z.detach().double().requires_grad_(), p.detach().double().requires_grad_()
    got, want = soft_assign(z, p, 0.5), soft_assign_reference(exact_z, exact_p, 0.5)
    for name in FIELDS[1:]:
        torch.testing.assert_close(getattr(got, name).double(), getattr(want, name), rtol=2e-5, atol=2e-5)
    # The centroid itself is rounded to the last digit that float32 has at the offset.
    torch.testing.assert_close(got.centroid.double(), want.centroid, rtol=1e-7, atol=2e-5)
    assert torch.equal(got.indices, want.indices)
    weight = torch.linspace(-1, 1, 6)
    ((got.centroid - offset) @ weight).sum().add(got.variance.sum()).backward()
    ((want.centroid - offset) @ weight.double()).sum().add(want.variance.sum()).backward()
    for mine, exact in ((z.grad, exact_z.grad), (p.grad, exact_p.grad)):
        assert float((mine.double() - exact).norm() / exact.norm()) < 1e-4


def test_large_shifted_problem_keeps_v_positive_and_exact() -> None:
    z, p = draw(4096, 1024, 16)
    z, p = z + 100, p + 100
    got = soft_assign(z, p, 0.02)
    total = 0.0
    for rows in z.double().split(512):
        total += float(soft_assign_reference(rows, p.double(), 0.02).variance.sum())
    assert float(got.variance.min()) >= 0
    assert float(got.v) == pytest.approx(total / 4096, rel=1e-4)


def test_entropy_stays_exact_where_logits_are_huge() -> None:
    z, p = draw(300, 64, 16)
    for temperature in (1e-7, 1e-4, 1e-2):
        want = soft_assign_reference(z.double(), p.double(), temperature)
        got = soft_assign(z, p, temperature)
        # Logits of several thousand are rounded to some 3e-4.
        torch.testing.assert_close(got.entropy.double(), want.entropy, rtol=0, atol=5e-4)
        assert float(got.entropy.min()) >= 0


def test_float16_and_bfloat16_are_computed_in_float32() -> None:
    z, p = draw(20, 8, 4)
    for dtype in (torch.float16, torch.bfloat16):
        got = soft_assign(z.to(dtype) * 100, p.to(dtype) * 100, 3.0)
        assert got.centroid.dtype == torch.float32
        assert_same(got, soft_assign_reference(z.to(dtype).float() * 100, p.to(dtype).float() * 100, 3.0), rtol=1e-2, atol=30.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_same(soft_assign(z, p, 0.5), soft_assign_reference(z.double(), p.double(), 0.5), rtol=1e-5, atol=1e-5)


# -- gradients -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*FIELDS, "l_q", "l_ols", "v"])
@pytest.mark.parametrize("block", [5, 1 << 18])
def test_gradcheck_of_every_output_for_tokens_prototypes_and_temperature(name: str, block: int) -> None:
    z, p = draw(6, 5, 3, dtype=torch.float64)
    temperature = torch.tensor(0.7, dtype=torch.float64)
    inputs = tuple(x.requires_grad_() for x in (z, p, temperature))
    assert torch.autograd.gradcheck(lambda z, p, t: getattr(soft_assign(z, p, t, block), name), inputs)


def test_gradients_equal_the_references_for_all_outputs_together() -> None:
    z, p = draw(70, 33, 4, dtype=torch.float64)
    grads = []
    for assign in (lambda *x: soft_assign(*x, block=100), soft_assign_reference):
        inputs = [
            z.clone().requires_grad_(),
            p.clone().requires_grad_(),
            torch.tensor(0.3, dtype=torch.float64, requires_grad=True),
        ]
        out = assign(*inputs)
        scalar = sum((i + 1) * (getattr(out, name) * torch.cos(getattr(out, name).detach())).sum() for i, name in enumerate(FIELDS))
        grads.append(torch.autograd.grad(scalar, inputs))
    for mine, reference in zip(*grads, strict=True):
        torch.testing.assert_close(mine, reference)


def test_one_hot_assignment_passes_no_gradient_to_the_tokens() -> None:
    z, p = draw(20, 8, 4)
    z.requires_grad_()
    soft_assign(z, p, 1e-5).centroid.square().sum().backward()
    assert torch.count_nonzero(z.grad) == 0


def test_second_derivatives_are_refused_instead_of_wrong() -> None:
    z, p = draw(4, 3, 2)
    z.requires_grad_()
    (first,) = torch.autograd.grad(soft_assign(z, p, 0.5).v, z, create_graph=True)
    with pytest.raises(RuntimeError, match=r"once_differentiable|does not require grad|twice"):
        first.sum().backward()


@pytest.mark.parametrize("offset", [0.0, 100.0])
@pytest.mark.parametrize("tau", [0.002, 0.02, 0.2, 1.0])
def test_gradients_of_a_level_are_within_1e_4_of_float64(tau: float, offset: float) -> None:
    z, p = draw(512, 128, 16)
    p = p[torch.arange(128).repeat_interleave(2)[:128]] + 0.1 * p  # pairs of near prototypes: assignments stay mixed when cold
    z, p, temperature = z + offset, p + offset, tau * 16
    weight = torch.randn(512, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def gradients(assign: object, *inputs: Tensor) -> tuple[Tensor, ...]:
        inputs = tuple(x.clone().requires_grad_() for x in inputs)
        soft = assign(*inputs, temperature)  # type: ignore[operator]
        loss = (soft.centroid * weight.to(soft.centroid.dtype)).mean() + 0.05 * soft.l_q / 16 + 0.03 * soft.entropy.mean()
        return torch.autograd.grad(loss + 0.03 * usage_penalty(soft.mean_assignment), inputs)

    exact = gradients(soft_assign_reference, z.double(), p.double())
    for block in (None, 4096):  # the assignment kept, and computed again
        for mine, want in zip(gradients(lambda *x, b=block: soft_assign(*x, b), z, p), exact, strict=True):
            assert float((mine.double() - want).norm() / want.norm()) < 1e-4


# -- nearest and argmax --------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0.0, 100.0, 1e4])
@pytest.mark.parametrize(("n", "k", "d"), [(1, 1, 1), (500, 512, 8), (300, 77, 3), (50, 64, 1)])
def test_nearest_is_exact(n: int, k: int, d: int, offset: float) -> None:
    z, p = draw(n, k, d)
    z, p = z + offset, p + offset
    exact = squared_distances(z.double(), p.double())
    got = nearest(z, p, block=1000)
    chosen = exact.gather(1, got[:, None])[:, 0]
    # Only where two distances agree to float32's last digits may the choice differ.
    torch.testing.assert_close(chosen, exact.amin(-1), rtol=0, atol=1e-5)
    lowest = exact.topk(min(2, k), largest=False).values
    clear = torch.ones(n, dtype=torch.bool) if k == 1 else (lowest[:, 1] - lowest[:, 0]) > 1e-4
    assert clear.float().mean() > 0.2
    assert torch.equal(got[clear], exact.argmin(-1)[clear])
    assert torch.equal(got, nearest(z, p))


@pytest.mark.parametrize("offset", [0.0, 100.0])
@pytest.mark.parametrize("k", [96, 100])
def test_ids_are_those_of_float64_even_where_rounding_would_decide(k: int, offset: float) -> None:
    _, p = draw(1, k, 8)
    generator = torch.Generator().manual_seed(5)
    z = 0.5 * (p[torch.randint(k, (4000,), generator=generator)] + p[torch.randint(k, (4000,), generator=generator)])  # half way
    z, p = z + offset, p + offset
    exact = squared_distances(z.double(), p.double())
    want, lowest = exact.argmin(-1), exact.topk(2, largest=False).values
    near = (lowest[:, 1] - lowest[:, 0]) < 1e-6 * lowest[:, 1]
    tied = (lowest[:, 1] - lowest[:, 0]) < 1e-13 * lowest[:, 1]
    assert int((near & ~tied).sum()) > 20
    for got in (nearest(z, p), soft_assign(z, p, 0.5).indices, nearest(z, p, block=1000)):
        assert torch.equal(got[~tied], want[~tied])


def test_nearest_in_float16_does_not_overflow() -> None:
    z = torch.full((3, 4), 300.0, dtype=torch.float16)
    p = torch.tensor([[-300.0], [200.0], [299.0], [310.0]]).expand(4, 4).half()
    assert nearest(z, p).tolist() == [2, 2, 2]
    assert torch.isfinite(soft_assign(z, p, 1.0).centroid).all()


def test_nearest_takes_the_first_of_equal_codes() -> None:
    p = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)).repeat(32, 1)  # 128 codes, each 32 times
    assert torch.equal(nearest(p, p), torch.arange(4).repeat(32))
    assert torch.equal(soft_assign(p, p, 0.1).indices, torch.arange(4).repeat(32))


@pytest.mark.parametrize("k", [1, 5, 32, 33, 64, 96, 1024])
def test_maximum_of_rows_stands_first_among_ties(k: int) -> None:
    s = torch.randint(0, 3, (500, k), generator=torch.Generator().manual_seed(k)).float()
    value, index, contested = maximum_rows(s)
    assert value.tolist() == [max(row) for row in s.tolist()]
    assert index.tolist() == [row.index(max(row)) for row in s.tolist()]
    assert contested.tolist() == [row.count(max(row)) > 1 for row in s.tolist()]
    assert maximum_rows(torch.full((3, k), -torch.inf))[1].tolist() == [0, 0, 0]
    assert maximum_rows(s[:0])[1].shape == (0,)


# -- memory --------------------------------------------------------------------------------------------------

MEMORY = """
import resource, torch
from vqlab.fused import soft_assign

def step(n, k):
    z = torch.randn(n, 16, requires_grad=True)
    p = torch.randn(k, 16, requires_grad=True)
    out = soft_assign(z, p, 0.1)
    (out.l_q + out.centroid.square().mean() + out.mean_assignment.square().sum()).backward()
    assert torch.isfinite(z.grad).all() and torch.isfinite(p.grad).all()

peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
step(64, 64)  # libraries and their thread pools
before = peak()
step(4096, 16384)
print(peak() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ru_maxrss is in KiB on Linux only")
def test_memory_of_a_large_codebook() -> None:
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    # The n x k matrix alone would take 256 MiB, a plain forward and backward 785.
    assert float(done.stdout) < 40


# -- other devices -------------------------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_cuda_device_gives_the_same_figures_and_gradients() -> None:
    z, p = draw(3000, 512, 16)
    grads = []
    for device in ("cpu", "cuda"):
        inputs = tuple(x.to(device).requires_grad_() for x in (z, p))
        soft = soft_assign(*inputs, 0.5)
        loss = soft.l_q + soft.centroid.square().mean() + soft.entropy.mean() + usage_penalty(soft.mean_assignment)
        grads.append(torch.autograd.grad(loss, inputs))
        assert torch.equal(soft.indices.cpu(), nearest(z, p))
        assert torch.equal(nearest(*inputs).cpu(), nearest(z, p))
    for mine, want in zip(grads[1], grads[0], strict=True):
        assert float((mine.cpu() - want).norm() / want.norm()) < 1e-4

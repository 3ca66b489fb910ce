"""Projection and normalisation of the latents."""

import pytest
import torch

from vqlab.quantizers.latents import LatentNorm, LatentSpace


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def test_training_normalises_by_the_batch_and_tracks_it() -> None:
    norm = LatentNorm(3, momentum=0.25).train()
    batches = [torch.randn(50, 3) * s + 5 for s in (1.0, 4.0, 0.3)]
    mean = variance = None
    for z in batches:
        out = norm(z)
        torch.testing.assert_close(out.mean(0), torch.zeros(3), rtol=0, atol=1e-4)
        torch.testing.assert_close(out.var(0, correction=0), torch.ones(3), rtol=1e-3, atol=0)
        m, v = z.mean(0), z.var(0, correction=0)
        mean = m if mean is None else 0.75 * mean + 0.25 * m
        variance = v if variance is None else 0.75 * variance + 0.25 * v
    torch.testing.assert_close(norm.mean, mean)
    torch.testing.assert_close(norm.variance, variance)
    z = torch.randn(9, 3)
    norm.eval()
    torch.testing.assert_close(norm(z), (z - mean) / (variance + 1e-5).sqrt())
    torch.testing.assert_close(norm(z[:1]), norm(z)[:1])  # an image's ids do not depend on its neighbours


def test_first_batch_replaces_the_initial_statistics() -> None:
    norm = LatentNorm(2).train()
    z = torch.randn(40, 2) * 100 + 1e4
    trained = norm(z)
    torch.testing.assert_close(norm.eval()(z), trained)


def test_gradient_passes_through_the_batch_statistics() -> None:
    norm = LatentNorm(3).double().train()
    z = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(norm, (z,))
    (gradient,) = torch.autograd.grad((norm(z) * torch.randn(6, 3)).sum(), z)
    torch.testing.assert_close(gradient.sum(0), torch.zeros(3, dtype=torch.float64))  # a shift of the batch has no effect


def test_shrinking_the_latents_has_no_effect() -> None:
    z = torch.randn(100, 4)
    torch.testing.assert_close(LatentNorm(4).train()(z * 0.05), LatentNorm(4).train()(z), rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("z", [torch.zeros(10, 3), torch.full((10, 3), 1e4), torch.randn(1, 3)], ids=["zeros", "constant", "one-token"])
def test_no_variance(z: torch.Tensor) -> None:
    norm = LatentNorm(3).train()
    assert float(norm(z).abs().max()) < 1e-2
    assert torch.isfinite(norm.eval()(z + 1)).all()


def test_no_tokens() -> None:
    norm = LatentNorm(3).train()
    with pytest.raises(ValueError, match="no statistics"):
        norm(torch.zeros(0, 3))
    assert norm.eval()(torch.zeros(0, 3)).shape == (0, 3)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(("dim", "codebook_dim"), [(32, 8), (8, 32), (8, 8), (1, 1)])
def test_space(dim: int, codebook_dim: int, normalize: bool) -> None:
    space = LatentSpace(dim, codebook_dim, normalize)
    z = torch.randn(20, dim)
    inside = space.enter(z)
    assert inside.shape == (20, codebook_dim)
    assert space.leave(inside).shape == (20, dim)
    assert sum(p.numel() for p in space.parameters()) == (0 if dim == codebook_dim else 2 * dim * codebook_dim + dim + codebook_dim)
    if dim == codebook_dim and not normalize:
        assert torch.equal(space.leave(inside), z)

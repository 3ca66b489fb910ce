"""Lookup-free and binary spherical quantization against the library's."""

import pytest
import torch
from vector_quantize_pytorch import LFQ

from vqlab.quantizers.peers import BSQCodebook, LFQCodebook

KINDS = pytest.mark.parametrize("cls", [LFQCodebook, BSQCodebook])


@KINDS
@pytest.mark.parametrize(("entropy_weight", "diversity", "commitment_weight", "beta"), [(0.1, 1.0, 0.25, 100.0), (0.5, 0.7, 0.0, 3.0)])
def test_codes_ids_loss_and_gradient_are_the_librarys(
    cls: type[LFQCodebook], entropy_weight: float, diversity: float, commitment_weight: float, beta: float
) -> None:
    level = cls(
        6,
        64,
        entropy_weight=entropy_weight,
        diversity=diversity,
        commitment_weight=commitment_weight,
        inverse_temperature=beta,
    ).train()
    library = LFQ(
        codebook_size=64,
        entropy_loss_weight=entropy_weight,
        diversity_gamma=diversity,
        commitment_loss_weight=commitment_weight,
        spherical=cls.spherical,
    ).train()
    z = torch.randn(300, 6)
    z.view(-1)[:2] = torch.tensor([0.0, -0.0])
    mine, theirs, weight = z.clone().requires_grad_(), z.clone().requires_grad_(), torch.randn(300, 6)
    out = level(mine)
    quantized, indices, loss = library(theirs[None], inv_temperature=beta)
    torch.testing.assert_close(out.quantized, quantized[0])
    assert torch.equal(out.indices, indices[0].long())
    assert float(out.loss.detach()) == pytest.approx(float(loss.detach()), abs=2e-4)  # the library cuts logarithms off at 1e-5
    torch.testing.assert_close(level.lookup(out.indices), library.indices_to_codes(indices)[0])
    (out.loss + (out.quantized * weight).sum()).backward()
    (loss + (quantized[0] * weight).sum()).backward()
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-4)


@KINDS
def test_entropies_are_those_of_their_definition(cls: type[LFQCodebook]) -> None:
    level = cls(5, 32, inverse_temperature=2.0).train()
    z = torch.randn(200, 5)
    u, codes = level.bounded(z).double(), level.codes.double()
    q = torch.softmax(4.0 * u @ codes.T, -1)
    parts = level(z).parts
    assert float(parts["token_entropy"]) == pytest.approx(float(-(q * q.log()).sum(-1).mean()), rel=1e-5)
    mean = q.mean(0)
    assert float(parts["mean_entropy"]) == pytest.approx(float(-(mean * mean.log()).sum()), rel=1e-5)


@KINDS
@pytest.mark.parametrize("size", [1, 3, 12, 500])
def test_sizes_that_are_no_power_of_two_are_refused(cls: type[LFQCodebook], size: int) -> None:
    with pytest.raises(ValueError, match=rf"codebook_size of {cls.kind} must be a power of two of at least 2, got {size}"):
        cls(4, size)


@KINDS
@pytest.mark.parametrize(
    ("name", "value"), [("entropy_weight", -1.0), ("diversity", -0.1), ("commitment_weight", float("nan")), ("inverse_temperature", 0.0)]
)
def test_refused_settings(cls: type[LFQCodebook], name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        cls(4, 16, **{name: value})


def test_spherical_codes_have_length_one_and_scale_of_tokens_does_not_matter() -> None:
    level = BSQCodebook(7, 128).train()
    torch.testing.assert_close(level.codes.norm(dim=-1), torch.ones(128))
    z = torch.randn(60, 7)
    torch.testing.assert_close(level(z).loss, level(5 * z).loss)

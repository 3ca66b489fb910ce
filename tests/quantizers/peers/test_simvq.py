"""SimVQ: one linear map over a fixed random codebook."""

import pytest
import torch

from vqlab.quantizers.peers import SimVQCodebook


@pytest.mark.parametrize("rotation", [True, False])
def test_codes_loss_and_gradients(rotation: bool) -> None:
    level = SimVQCodebook(4, 32, commitment_weight=0.25, rotation=rotation).train()
    z = torch.randn(100, 4, requires_grad=True)
    out = level(z)
    (weight,) = level.codebook_parameters()
    codes = level.simvq.frozen_codebook.double() @ weight.detach().double().T
    torch.testing.assert_close(level.codes.detach().double(), codes, rtol=1e-5, atol=1e-6)
    zd = z.detach().double()
    nearest = torch.cdist(zd, codes).argmin(-1)
    assert torch.equal(out.indices, nearest)
    error = (zd - codes[nearest]).square().mean()
    assert float(out.loss.detach()) == pytest.approx(1.25 * float(error), rel=1e-5)
    torch.testing.assert_close(out.quantized.detach().double(), codes[nearest], rtol=1e-5, atol=1e-6)
    out.quantized.sum().backward(retain_graph=True)
    straight = torch.allclose(z.grad, torch.ones_like(z))
    assert straight != rotation
    assert weight.grad is None  # the decoder does not move the codes
    out.loss.backward()
    assert float(weight.grad.norm()) > 0


def test_the_random_codebook_never_moves_and_the_map_moves_every_code() -> None:
    level = SimVQCodebook(4, 32).train()
    fixed, before = level.simvq.frozen_codebook.clone(), level.codes.detach().clone()
    optimizer = torch.optim.SGD(level.parameters(), lr=0.5)
    level(torch.ones(3, 4)).loss.backward()  # tokens of one code
    optimizer.step()
    assert torch.equal(level.simvq.frozen_codebook, fixed)
    assert bool((level.codes.detach() != before).any(-1).all())


def test_refused_settings() -> None:
    with pytest.raises(ValueError, match="commitment_weight"):
        SimVQCodebook(4, 8, commitment_weight=-1.0)

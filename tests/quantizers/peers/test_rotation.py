"""The rotation trick against its definition and the library's."""

import torch
from vector_quantize_pytorch.vector_quantize_pytorch import rotate_to

from vqlab.quantizers.peers import RotationCodebook
from vqlab.quantizers.peers.rotation import rotate


def test_the_jacobian_is_the_scaled_rotation_from_token_to_code() -> None:
    z, code = torch.randn(3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda x: rotate(x[None], code[None])[0], z)
    scale = code.norm() / z.norm()
    rotation = jacobian / scale
    torch.testing.assert_close(rotation @ rotation.T, torch.eye(3, dtype=torch.float64))
    torch.testing.assert_close(rotation @ z * scale, code)
    across = torch.linalg.cross(z, code)  # the axis stays where it is
    torch.testing.assert_close(rotation @ across, across)


def test_values_and_gradients_are_the_librarys() -> None:
    code, weight = torch.randn(200, 5), torch.randn(200, 5)
    z = torch.randn(200, 5)
    mine, theirs = z.clone().requires_grad_(), z.clone().requires_grad_()
    quantized = rotate(mine, code)
    torch.testing.assert_close(quantized, code)
    (quantized * weight).sum().backward()
    (rotate_to(theirs, code) * weight).sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-4)


def test_opposite_and_vanishing_tokens_have_finite_gradients() -> None:
    code = torch.tensor([[1.0, 2.0, -1.0]]).expand(3, 3)
    z = torch.cat([-code[:1], code[:1], 0 * code[:1]]).requires_grad_()
    quantized = rotate(z, code)
    torch.testing.assert_close(quantized, code)
    quantized.sum().backward()
    assert torch.isfinite(z.grad).all()


def test_only_the_gradient_differs_from_the_baseline() -> None:
    level = RotationCodebook(4, 16).train()
    z = torch.randn(200, 4, requires_grad=True)
    out = level(z)
    torch.testing.assert_close(out.quantized, level.lookup(out.indices))
    out.quantized.sum().backward()
    assert not torch.allclose(z.grad, torch.ones_like(z))
    before = level.codes.detach().clone()
    level.after_step()
    assert not torch.equal(level.codes, before)

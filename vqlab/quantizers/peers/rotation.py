"""Hard vector quantization whose gradient is rotated from the code to the token instead of copied.

Source: Fifty et al., "Restructuring Vector Quantization with the Rotation Trick" (arXiv:2410.06424), section 4.

    e^ = z/||z||, q^ = code/||code||, r = (e^ + q^)/||e^ + q^||
    quantized = ||code||/||z|| (z - 2 r r'z + 2 q^ e^'z) = code, with r, e^, q^ and the norms held constant for the gradient
"""

from __future__ import annotations

import torch
from torch import Tensor

from vqlab.quantizers.vq import VQCodebook


def rotate(z: Tensor, code: Tensor) -> Tensor:
    """The codes, with the gradient of the rotation and scaling that takes each token to its code: (n, d), (n, d) -> (n, d)."""
    with torch.no_grad():
        z_norm, code_norm = (x.norm(dim=-1, keepdim=True).clamp_min(1e-6) for x in (z, code))
        e, q = z / z_norm, code / code_norm
        r = e + q
        # Opposite directions have no bisector: r = 0 leaves the rotation by the other two terms, which is finite.
        r = r / r.norm(dim=-1, keepdim=True).clamp_min(1e-6)
    rotated = code_norm / z_norm * (z - 2 * r * (r * z).sum(-1, keepdim=True) + 2 * q * (e * z).sum(-1, keepdim=True))
    return rotated + (code - rotated).detach()


class RotationCodebook(VQCodebook):
    """One level of the VQ-VAE baseline (moving averages, k-means start, revival) with the gradient of the rotation trick."""

    kind = "rotation"

    def pass_gradient(self, z: Tensor, code: Tensor) -> Tensor:
        return rotate(z, code)

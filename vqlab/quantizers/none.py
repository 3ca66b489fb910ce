"""No quantization: the plain autoencoder that shows the ceiling of a backbone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vqlab.precision import without_autocast
from vqlab.quantizers.base import QuantizerOutput
from vqlab.quantizers.latents import LatentSpace
from vqlab.quantizers.stack import Quantizer


class NoQuantizer(Quantizer):
    """Hands latents on unchanged; has no ids, so `encode` and `decode_indices` raise ValueError."""

    def __init__(self, dim: int, *, normalize: bool = True) -> None:
        torch.nn.Module.__init__(self)
        self.dim = self.codebook_dim = dim
        self.topology, self.normalize = "residual", normalize
        self.space = LatentSpace(dim, dim, normalize)
        self.levels = torch.nn.ModuleList()

    def forward(self, x: Tensor) -> QuantizerOutput:
        with without_autocast(x.device):
            quantized = self._leave(self._enter(x), x)
            grid = x.shape[2:] if x.dim() == 4 else x.shape[1:2]
            indices = torch.empty(x.shape[0], *grid, 0, dtype=torch.int64, device=x.device)
            return QuantizerOutput(quantized=quantized, indices=indices, loss=quantized.new_zeros(()))

    def encode(self, x: Tensor, levels: int | None = None) -> Tensor:
        raise ValueError("a tokenizer without a quantizer has no ids")

    def decode_indices(self, indices: Tensor) -> Tensor:
        raise ValueError("a tokenizer without a quantizer has no ids")

    def settings(self) -> dict[str, Any]:
        return {"topology": self.topology, "normalize": self.normalize, "codebook_dim": self.codebook_dim, "levels": []}

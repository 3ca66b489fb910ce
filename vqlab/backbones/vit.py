"""A ViT decoder: standard transformer blocks on the latent grid, then pixel shuffle.

    (b, dim, h', w') --> 1x1 to width, + sine-cosine positions --> blocks --> norm, linear to 3 f^2 --> pixel shuffle --> 3x3 conv --> image

Sources: Dosovitskiy et al. (arXiv:2010.11929) for the blocks, Yu et al., ViT-VQGAN (arXiv:2110.04627) for the decoder, Shi et al.
(arXiv:1609.05158) for the pixel shuffle.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from timm.layers import build_sincos2d_pos_embed
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class ViTConfig:
    """Shape of the ViT decoder.

    Args:
        width: channels of a token, a multiple of 4 and of heads.
        depth: transformer blocks.
        heads: attention heads.
        mlp_ratio: width of the hidden layer of a block's perceptron over `width`.
    """

    width: int = 192
    depth: int = 4
    heads: int = 3
    mlp_ratio: float = 4.0

    def __post_init__(self) -> None:
        for name in ("width", "depth", "heads"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"vit decoder: {name} must be an integer of at least 1, got {value!r}")
        if self.width % 4 or self.width % self.heads:
            raise ValueError(f"vit decoder: width must be a multiple of 4 and of heads ({self.heads}), got {self.width}")
        if not self.mlp_ratio > 0:
            raise ValueError(f"vit decoder: mlp_ratio must be positive, got {self.mlp_ratio}")

    def settings(self) -> dict[str, Any]:
        return asdict(self)


def grid_positions(height: int, width: int, dim: int, device: torch.device) -> Tensor:
    """Sine-cosine embedding of the places of a grid, for any grid: (height width, dim)."""
    return build_sincos2d_pos_embed([height, width], dim, device=device)


class ViTDecoder(nn.Module):
    """A grid of vectors to images: (b, dim, h', w') -> (b, channels, f h', f w'), for a grid of any size."""

    def __init__(self, dim: int, config: ViTConfig, factor: int, channels: int = 3) -> None:
        super().__init__()
        self.factor, self.width = factor, config.width
        self.enter = nn.Conv2d(dim, config.width, 1)
        self.blocks = nn.Sequential(
            *(Block(config.width, config.heads, mlp_ratio=config.mlp_ratio, qkv_bias=True) for _ in range(config.depth))
        )
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, channels * factor**2)
        # Patches are decoded one by one: a last convolution removes the seams between them. It starts as the identity.
        self.smooth = nn.Conv2d(channels, channels, 3, padding=1)
        nn.init.dirac_(self.smooth.weight)
        nn.init.zeros_(self.smooth.bias)  # type: ignore[arg-type]

    def forward(self, latents: Tensor) -> Tensor:
        height, width = latents.shape[2:]
        tokens = self.enter(latents).flatten(2).mT  # (b, h' w', width)
        tokens = self.blocks(tokens + grid_positions(height, width, self.width, tokens.device).to(tokens.dtype))
        patches = self.head(self.norm(tokens)).mT.unflatten(2, (height, width))
        return self.smooth(F.pixel_shuffle(patches, self.factor))

"""A one-dimensional tokenizer: learned queries read the image, so that the number of tokens is free of its size in patches.

    encoder   [patches + positions | queries] --> blocks --> the queries' outputs --> linear --> (b, tokens, dim)
    decoder   [mask tokens + positions | latents] --> blocks --> the mask tokens' outputs --> linear, pixel shuffle --> image

Sources: Yu et al., "An Image is Worth 32 Tokens" (TiTok, arXiv:2406.07550), section 3.2; SoftVQ-VAE (arXiv:2412.10958).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.nn import functional as F

from vqlab.backbones.vit import grid_positions


@dataclass(frozen=True)
class TitokConfig:
    """Shape of the one-dimensional encoder and decoder.

    Args:
        tokens: learned queries, the tokens of an image.
        image_size: side of the images; smaller ones are padded to it, larger ones refused.
        patch_size: pixels of a patch's side; image_size must be a multiple of it.
        width: channels of a token inside, a multiple of 4 and of heads.
        depth: transformer blocks, of the encoder and of the decoder.
        heads: attention heads.
    """

    tokens: int = 32
    image_size: int = 32
    patch_size: int = 4
    width: int = 192
    depth: int = 4
    heads: int = 3

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"titok: {name} must be an integer of at least 1, got {value!r}")
        if self.image_size % self.patch_size:
            raise ValueError(f"titok: image_size must be a multiple of patch_size ({self.patch_size}), got {self.image_size}")
        if self.width % 4 or self.width % self.heads:
            raise ValueError(f"titok: width must be a multiple of 4 and of heads ({self.heads}), got {self.width}")

    @property
    def grid(self) -> int:
        """Patches along a side."""
        return self.image_size // self.patch_size

    def settings(self) -> dict[str, Any]:
        return asdict(self)


def _blocks(config: TitokConfig) -> nn.Sequential:
    return nn.Sequential(*(Block(config.width, config.heads, qkv_bias=True) for _ in range(config.depth)))


def _learned(count: int, width: int) -> nn.Parameter:
    return nn.Parameter(0.02 * torch.randn(count, width))


class TitokEncoder(nn.Module):
    """Images to a sequence of vectors: (b, channels, image_size, image_size) -> (b, tokens, dim)."""

    def __init__(self, dim: int, config: TitokConfig, channels: int = 3, latent_bias: bool = True) -> None:
        super().__init__()
        self.config, self.factor, self.fixed_size = config, config.patch_size, config.image_size
        self.patches = nn.Conv2d(channels, config.width, config.patch_size, config.patch_size)
        self.queries = _learned(config.tokens, config.width)
        self.blocks = _blocks(config)
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, dim, bias=latent_bias)

    def forward(self, images: Tensor) -> Tensor:
        size = self.config.image_size
        if images.shape[2:] != (size, size):
            raise ValueError(f"this encoder reads images of {size}x{size}, got {images.shape[2]}x{images.shape[3]}")
        patches = self.patches(images).flatten(2).mT
        patches = patches + grid_positions(self.config.grid, self.config.grid, self.config.width, images.device).to(patches.dtype)
        queries = self.queries.to(patches.dtype).expand(images.shape[0], -1, -1)
        out = self.blocks(torch.cat([patches, queries], 1))
        return self.head(self.norm(out[:, -self.config.tokens :]))


class TitokDecoder(nn.Module):
    """A sequence of vectors to images: (b, tokens, dim) -> (b, channels, image_size, image_size)."""

    def __init__(self, dim: int, config: TitokConfig, channels: int = 3) -> None:
        super().__init__()
        self.config = config
        self.enter = nn.Linear(dim, config.width)
        self.places = _learned(config.tokens, config.width)
        self.mask = _learned(1, config.width)
        self.blocks = _blocks(config)
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, channels * config.patch_size**2)
        self.smooth = nn.Conv2d(channels, channels, 3, padding=1)
        nn.init.dirac_(self.smooth.weight)
        nn.init.zeros_(self.smooth.bias)  # type: ignore[arg-type]

    def forward(self, latents: Tensor) -> Tensor:
        if latents.shape[1] != self.config.tokens:
            raise ValueError(f"this decoder reads {self.config.tokens} tokens, got {latents.shape[1]}")
        grid = self.config.grid
        tokens = self.enter(latents)
        tokens = tokens + self.places.to(tokens.dtype)
        masks = self.mask + grid_positions(grid, grid, self.config.width, latents.device)
        out = self.blocks(torch.cat([masks.to(tokens.dtype).expand(latents.shape[0], -1, -1), tokens], 1))
        patches = self.head(self.norm(out[:, : grid * grid])).mT.unflatten(2, (grid, grid))
        return self.smooth(F.pixel_shuffle(patches, self.config.patch_size))

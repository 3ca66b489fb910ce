"""An image tokenizer: encoder, quantizer and decoder that travel together.

images --> encoder --> quantizer --> ids (b, h', w', levels)
                           |
reconstruction <-- decoder <-- codes
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vqlab.backbones import (
    ConvConfig,
    DecoderConfig,
    TimmConfig,
    TitokConfig,
    backbone_config,
    build_decoder,
    build_encoder,
    decoder_config,
)
from vqlab.errors import VqlabError
from vqlab.images import as_unit_images, to_network, to_unit
from vqlab.quantizers import QuantizerOutput, build_quantizer
from vqlab.storage import read_tokenizer, write_tokenizer


@dataclass(frozen=True)
class TokenizerOutput:
    """What a training pass gives: reconstruction (b, c, h, w) float32 on the scale of [0, 1] (not clamped), and the quantizer's output."""

    reconstruction: Tensor
    quantizer: QuantizerOutput


class Tokenizer(nn.Module):
    """Turns images into token ids and back.

    config: plain JSON types, {"channels", "latent_dim", "encoder": {"name", ...}, "decoder": {"name", ...}, "quantizer": {"topology",
    "normalize", "codebook_dim", "levels"}}; without "decoder" it is the counterpart of the encoder. Raises VqlabError naming the key that
    is missing, unknown or refused.

    factor: pixels per token along a side.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        unknown = sorted(set(config) - {"channels", "latent_dim", "encoder", "decoder", "quantizer"})
        if unknown:
            raise VqlabError(f"unknown key {unknown[0]!r} in the tokenizer's configuration")
        for name in ("channels", "latent_dim"):
            value = config.get(name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise VqlabError(f"the tokenizer's {name!r} must be an integer of at least 1, got {value!r}")
        self.channels, dim = config["channels"], config["latent_dim"]
        for name in ("encoder", "quantizer"):
            if not isinstance(config.get(name), dict):
                raise VqlabError(f"the tokenizer's {name!r} must be a mapping of settings, got {config.get(name)!r}")
        encoder = dict(config["encoder"])
        if "name" not in encoder:
            raise VqlabError("the tokenizer's 'encoder' needs a 'name'")
        self.backbone_name = str(encoder.pop("name"))
        self.backbone = backbone_config(self.backbone_name, encoder)
        self.quantizer = build_quantizer(dim, config["quantizer"])
        latent_bias = not self.quantizer.normalize
        self.encoder = build_encoder(self.backbone_name, dim, self.backbone, self.channels, latent_bias)
        self.factor: int = self.encoder.factor  # type: ignore[assignment]
        self.decoder_name, self.decoder_config = self._decoder(config.get("decoder"))
        self.decoder = build_decoder(dim, self.decoder_config, self.channels, self.factor)

    def _decoder(self, given: Any) -> tuple[str, DecoderConfig]:
        """Name and settings of the decoder; a conv decoder of another encoder gets as many upsamplings as that encoder needs."""
        if given is None:
            if isinstance(self.backbone, TimmConfig):
                raise VqlabError("a timm encoder has no decoder of its own: the tokenizer needs a 'decoder'")
            return self.backbone_name, self.backbone
        if not isinstance(given, dict) or "name" not in given:
            raise VqlabError(f"the tokenizer's 'decoder' must be a mapping of settings with a 'name', got {given!r}")
        settings = dict(given)
        name = str(settings.pop("name"))
        if (name == "titok") != isinstance(self.backbone, TitokConfig):
            raise VqlabError(f"encoder {self.backbone_name} and decoder {name} do not fit: titok's tokens are a sequence, others' a grid")
        if name == "conv" and "downsamplings" not in settings and not isinstance(self.backbone, ConvConfig):
            if self.factor & (self.factor - 1):
                raise VqlabError(
                    f"a conv decoder doubles the resolution, but {self.backbone_name} has {self.factor} pixels per token: take vit"
                )
            settings["downsamplings"] = self.factor.bit_length() - 1
        return name, decoder_config(name, settings)

    # -- images and ids ---------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def encode(self, images: Tensor, levels: int | None = None) -> Tensor:
        """Token ids: uint8 or floats in [0, 1], (b, c, h, w) -> (b, h', w', levels) int64; one image (c, h, w) -> (h', w', levels).

        Images of any size: sides that are no multiple of `factor` are padded at the bottom and the right by their last row and column;
        pass the size to `decode_indices` to get it back. Raises ValueError for values out of range, a wrong number of channels or levels,
        or images that are larger than the encoder reads.
        """
        single = images.dim() == 3
        ids = self.quantizer.encode(self.encode_features(self._check(images)), levels)
        return ids[0] if single else ids

    @torch.no_grad()
    def decode_indices(self, indices: Tensor, size: tuple[int, int] | None = None) -> Tensor:
        """Images of token ids: (b, h', w', levels) -> (b, c, h, w) float32 in [0, 1]; (h', w', levels) -> (c, h, w).

        size: (h, w) of the image that was encoded, where its sides are no multiples of `factor`; ids do not hold it. Fewer levels than the
        tokenizer has decode a coarser image. Raises ValueError for an id outside 0..codebook_size-1, or a size that these ids cannot have.
        """
        single = indices.dim() == self._single_dims
        images = self.decode(self.embed(indices[None] if single else indices)).clamp(0.0, 1.0)
        if size is not None:
            if self.padded_size(*size) != tuple(images.shape[-2:]):
                raise ValueError(f"images of {size[0]}x{size[1]} have other ids: these decode to {images.shape[-2]}x{images.shape[-1]}")
            images = images[..., : size[0], : size[1]]
        return images[0] if single else images

    def padded_size(self, height: int, width: int) -> tuple[int, int]:
        """Sides of an image after padding, multiples of `factor`. Raises ValueError for an image without pixels or too large a one."""
        if height < 1 or width < 1:
            raise ValueError(f"an image needs at least one pixel, got {height}x{width}")
        fixed: int | None = getattr(self.encoder, "fixed_size", None)
        if fixed is None:
            return -(-height // self.factor) * self.factor, -(-width // self.factor) * self.factor
        if max(height, width) > fixed:
            raise ValueError(f"this tokenizer reads images of up to {fixed}x{fixed} pixels, got {height}x{width}: resize them first")
        return fixed, fixed

    def token_grid(self, height: int, width: int) -> tuple[int, ...]:
        """Shape of an image's ids without their levels: (h', w'), or (n,) where tokens are a sequence."""
        if isinstance(self.backbone, TitokConfig):
            self.padded_size(height, width)
            return (self.backbone.tokens,)
        height, width = self.padded_size(height, width)
        return height // self.factor, width // self.factor

    @property
    def _single_dims(self) -> int:
        """Axes of one image's ids."""
        return 2 if isinstance(self.backbone, TitokConfig) else 3

    def decode(self, quantized: Tensor) -> Tensor:
        """Vectors on the grid to images, with gradients: (b, dim, h', w') -> (b, c, h, w) float32, not clamped."""
        return to_unit(self.decoder(quantized))

    @torch.no_grad()
    def embed(self, indices: Tensor) -> Tensor:
        """Vectors that ids stand for: (b, h', w', levels) -> (b, dim, h', w'); (h', w', levels) -> (dim, h', w'). Of a sequence:
        (b, n, levels) -> (b, n, dim).

        Raises ValueError for an id outside 0..codebook_size-1.
        """
        single = indices.dim() == self._single_dims
        batch = (indices[None] if single else indices).to(next(self.parameters()).device)
        vectors = self.quantizer.decode_indices(batch)
        return vectors[0] if single else vectors

    def forward(self, images: Tensor) -> TokenizerOutput:
        """A training pass on checked images: (b, c, h, w) float in [0, 1] -> TokenizerOutput (soft where the quantizer is)."""
        out = self.quantizer(self.encode_features(images))
        return TokenizerOutput(self.decode(out.quantized), out)

    def encode_features(self, unit: Tensor) -> Tensor:
        """The encoder's output, what the quantizer reads: floats in [0, 1], (b, c, h, w) -> (b, dim, h', w'), with gradients."""
        return self.encoder(to_network(unit))

    def _check(self, images: Tensor) -> Tensor:
        unit = as_unit_images(images[None] if images.dim() == 3 else images, self.channels)
        h, w = unit.shape[-2:]
        padded = self.padded_size(h, w)
        if padded != (h, w):
            unit = F.pad(unit, (0, padded[1] - w, 0, padded[0] - h), mode="replicate")
        return unit.to(next(self.parameters()).device)

    # -- figures ----------------------------------------------------------------------------------------------------------------

    @property
    def num_parameters(self) -> int:
        """Parameters of encoder, decoder and quantizer, moving-average codebooks included."""
        return sum(p.numel() for p in self.parameters())

    # -- files ------------------------------------------------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        """The configuration that builds this tokenizer again."""
        return {
            "channels": self.channels,
            "latent_dim": self.quantizer.dim,
            "encoder": {"name": self.backbone_name, **self.backbone.settings()},
            **({} if self.decoder_config == self.backbone else {"decoder": {"name": self.decoder_name, **self.decoder_config.settings()}}),
            "quantizer": self.quantizer.settings(),
        }

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write model.safetensors and config.json (each atomically) into `folder` and return it."""
        return write_tokenizer(Path(folder), self.state_dict(), self.config())

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Tokenizer:
        """A tokenizer in `eval()` mode from a folder that `save_pretrained` wrote.

        Raises VqlabError naming the file or the field that is missing, damaged or does not fit; nothing is half-loaded.
        """
        config, state = read_tokenizer(Path(folder))
        with torch.random.fork_rng(devices=[]):  # weights that are replaced at once must not cost the caller random numbers
            tokenizer = cls(config)
        own = tokenizer.state_dict()
        for name in sorted(own.keys() | state.keys()):
            if name not in state:
                raise VqlabError(f"{folder}: the weights lack {name!r}, which the configuration asks for")
            if name not in own:
                raise VqlabError(f"{folder}: the weights hold {name!r}, which the configuration does not know")
            if own[name].shape != state[name].shape:
                raise VqlabError(
                    f"{folder}: {name!r} has shape {tuple(state[name].shape)}, the configuration asks for {tuple(own[name].shape)}"
                )
        tokenizer.load_state_dict(state)
        return tokenizer.eval()

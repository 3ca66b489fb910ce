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

from vqlab.backbones import backbone_config, build_backbone
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

    config: plain JSON types, {"channels", "latent_dim", "encoder": {"name", ...}, "quantizer": {"topology", "normalize", "codebook_dim",
    "levels"}}. Raises VqlabError naming the key that is missing, unknown or refused.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        unknown = sorted(set(config) - {"channels", "latent_dim", "encoder", "quantizer"})
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
        self.encoder, self.decoder = build_backbone(dim, self.backbone, self.channels, latent_bias)

    # -- images and ids ---------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def encode(self, images: Tensor, levels: int | None = None) -> Tensor:
        """Token ids: uint8 or floats in [0, 1], (b, c, h, w) -> (b, h', w', levels) int64; one image (c, h, w) -> (h', w', levels).

        Raises ValueError for sides that are no multiple of the encoder's factor, values out of range, a wrong number of channels or levels.
        """
        single = images.dim() == 3
        ids = self.quantizer.encode(self.encode_features(self._check(images)), levels)
        return ids[0] if single else ids

    @torch.no_grad()
    def decode_indices(self, indices: Tensor) -> Tensor:
        """Images of token ids: (b, h', w', levels) -> (b, c, h, w) float32 in [0, 1]; (h', w', levels) -> (c, h, w).

        Fewer levels than the tokenizer has decode a coarser image. Raises ValueError for an id outside 0..codebook_size-1.
        """
        single = indices.dim() == 3
        images = self.decode(self.embed(indices[None] if single else indices)).clamp(0.0, 1.0)
        return images[0] if single else images

    def decode(self, quantized: Tensor) -> Tensor:
        """Vectors on the grid to images, with gradients: (b, dim, h', w') -> (b, c, h, w) float32, not clamped."""
        return to_unit(self.decoder(quantized))

    @torch.no_grad()
    def embed(self, indices: Tensor) -> Tensor:
        """Vectors that ids stand for: (b, h', w', levels) -> (b, dim, h', w'); (h', w', levels) -> (dim, h', w').

        Raises ValueError for an id outside 0..codebook_size-1.
        """
        single = indices.dim() == 3
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
        factor = self.backbone.factor
        h, w = unit.shape[-2:]
        if h % factor or w % factor or not h or not w:
            raise ValueError(f"image sides must be multiples of {factor}, got {h}x{w}")
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
        with torch.device("meta"):  # shapes alone: a configuration that asks for more than the file holds must not fill the memory
            own = cls(config).state_dict()
        for name in sorted(own.keys() | state.keys()):
            if name not in state:
                raise VqlabError(f"{folder}: the weights lack {name!r}, which the configuration asks for")
            if name not in own:
                raise VqlabError(f"{folder}: the weights hold {name!r}, which the configuration does not know")
            if own[name].shape != state[name].shape:
                raise VqlabError(
                    f"{folder}: {name!r} has shape {tuple(state[name].shape)}, the configuration asks for {tuple(own[name].shape)}"
                )
        with torch.random.fork_rng(devices=[]):  # weights that are replaced at once must not cost the caller random numbers
            tokenizer = cls(config)
        tokenizer.load_state_dict(state)
        return tokenizer.eval()

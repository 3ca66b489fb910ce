"""Encoders and decoders, by the names that `--encoder` and `--decoder` take."""

from __future__ import annotations

from typing import Any

from torch import nn

from vqlab.backbones.conv import ConvConfig, ConvDecoder, ConvEncoder
from vqlab.backbones.timm_encoder import PREFIX, TimmConfig, TimmEncoder
from vqlab.backbones.titok import TitokConfig, TitokDecoder, TitokEncoder
from vqlab.backbones.vit import ViTConfig, ViTDecoder
from vqlab.errors import VqlabError
from vqlab.registry import Registry

BackboneConfig = ConvConfig | TimmConfig | TitokConfig
DecoderConfig = ConvConfig | TitokConfig | ViTConfig

#: Encoder name -> the dataclass of its settings; "timm" stands for every timm:MODEL.
BACKBONES: Registry[type[BackboneConfig]] = Registry("encoder", {"conv": ConvConfig, "timm": TimmConfig, "titok": TitokConfig})
#: Decoder name -> the dataclass of its settings.
DECODERS: Registry[type[DecoderConfig]] = Registry("decoder", {"conv": ConvConfig, "titok": TitokConfig, "vit": ViTConfig})


def backbone_kind(name: str) -> str:
    """The key of BACKBONES that an encoder's name belongs to; VqlabError for an unknown one."""
    if name.startswith(PREFIX) and len(name) > len(PREFIX):
        return "timm"
    if name == "timm" or name not in list(BACKBONES):
        raise VqlabError(f"unknown encoder {name!r}: choose from conv, titok, or {PREFIX}MODEL with any model of timm")
    return name


def backbone_config(name: str, settings: dict[str, Any]) -> BackboneConfig:
    """Checked settings of an encoder; VqlabError names an unknown encoder, an unknown key or a refused value."""
    try:
        return BACKBONES[backbone_kind(name)](**settings)
    except (TypeError, ValueError) as error:
        raise VqlabError(f"encoder {name!r}: {error}") from error


def decoder_config(name: str, settings: dict[str, Any]) -> DecoderConfig:
    """Checked settings of a decoder; VqlabError names an unknown decoder, an unknown key or a refused value."""
    try:
        return DECODERS[name](**settings)
    except (TypeError, ValueError) as error:
        raise VqlabError(f"decoder {name!r}: {error}") from error


def build_encoder(name: str, dim: int, config: BackboneConfig, channels: int, latent_bias: bool = True) -> nn.Module:
    """The encoder: images to latents of `dim` channels. Its `factor` is the number of pixels per token along a side."""
    if isinstance(config, TimmConfig):
        return TimmEncoder(dim, name.removeprefix(PREFIX), config, channels, latent_bias)
    if isinstance(config, TitokConfig):
        return TitokEncoder(dim, config, channels, latent_bias)
    return ConvEncoder(dim, config, channels, latent_bias)


def build_decoder(dim: int, config: DecoderConfig, channels: int, factor: int) -> nn.Module:
    """The decoder that makes `factor` pixels of every token along a side.

    VqlabError where a conv decoder makes another number of pixels.
    """
    if isinstance(config, TitokConfig):
        return TitokDecoder(dim, config, channels)
    if isinstance(config, ViTConfig):
        return ViTDecoder(dim, config, factor, channels)
    if config.factor != factor:
        raise VqlabError(
            f"the conv decoder makes {config.factor} pixels per token with {config.downsamplings} downsamplings, the encoder needs "
            f"{factor}: choose the decoder vit, or another stage or patch size"
        )
    return ConvDecoder(dim, config, channels)


__all__ = [
    "BACKBONES",
    "DECODERS",
    "PREFIX",
    "BackboneConfig",
    "ConvConfig",
    "ConvDecoder",
    "ConvEncoder",
    "DecoderConfig",
    "TimmConfig",
    "TimmEncoder",
    "TitokConfig",
    "TitokDecoder",
    "TitokEncoder",
    "ViTConfig",
    "ViTDecoder",
    "backbone_config",
    "backbone_kind",
    "build_decoder",
    "build_encoder",
    "decoder_config",
]

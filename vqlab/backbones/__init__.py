"""Encoders and decoders, by the name that `--encoder` takes."""

from __future__ import annotations

from typing import Any

from torch import nn

from vqlab.backbones.conv import ConvConfig, ConvDecoder, ConvEncoder
from vqlab.errors import VqlabError
from vqlab.registry import Registry

#: Backbone name -> the dataclass of its settings.
BACKBONES: Registry[type[ConvConfig]] = Registry("encoder", {"conv": ConvConfig})


def backbone_config(name: str, settings: dict[str, Any]) -> ConvConfig:
    """Checked settings of a backbone; VqlabError names an unknown backbone, an unknown key or a refused value."""
    try:
        return BACKBONES[name](**settings)
    except (TypeError, ValueError) as error:
        raise VqlabError(f"encoder {name!r}: {error}") from error


def build_backbone(dim: int, config: ConvConfig, channels: int, latent_bias: bool = True) -> tuple[nn.Module, nn.Module]:
    """Encoder and decoder of one backbone around latents of `dim` channels."""
    return ConvEncoder(dim, config, channels, latent_bias), ConvDecoder(dim, config, channels)


__all__ = ["BACKBONES", "ConvConfig", "ConvDecoder", "ConvEncoder", "backbone_config", "build_backbone"]

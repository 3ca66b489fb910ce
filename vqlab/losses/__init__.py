"""What a reconstruction is compared by."""

from vqlab.losses.perceptual import FEATURE_NETWORKS, FeatureDistance
from vqlab.losses.reconstruction import LossConfig, ReconstructionLoss

__all__ = ["FEATURE_NETWORKS", "FeatureDistance", "LossConfig", "ReconstructionLoss"]

"""Figures by which a tokenizer is judged: use of the codebook and quality of the reconstruction."""

from vqlab.metrics.means import WeightedMeans
from vqlab.metrics.reconstruction import (
    PSNR_CAP,
    ReconstructionMetrics,
    mse_per_image,
    psnr_from_mse,
    psnr_per_image,
    ssim_per_image,
)
from vqlab.metrics.usage import (
    CodebookUsage,
    SoftUsage,
    count_indices,
    perplexity_from_counts,
    perplexity_from_probabilities,
    utilization_from_counts,
)

__all__ = [
    "PSNR_CAP",
    "CodebookUsage",
    "ReconstructionMetrics",
    "SoftUsage",
    "WeightedMeans",
    "count_indices",
    "mse_per_image",
    "perplexity_from_counts",
    "perplexity_from_probabilities",
    "psnr_from_mse",
    "psnr_per_image",
    "ssim_per_image",
    "utilization_from_counts",
]

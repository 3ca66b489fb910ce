"""Quality of reconstructed images: MSE, PSNR and SSIM over a whole split, independent of the batch size."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import Metric

PSNR_CAP = 100.0  # dB: stands for a perfect image, whose PSNR would be infinite and drown every mean
SSIM_WINDOW = 11


def mse_per_image(reconstruction: Tensor, target: Tensor) -> Tensor:
    """Mean squared error of each image: two (b, c, h, w) -> (b,) float64."""
    return (reconstruction.double() - target.double()).square().flatten(1).mean(1)


def psnr_from_mse(mse: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB of images in [0, 1]: -10 log10(mse), at most PSNR_CAP."""
    return (-10 * torch.log10(mse)).clamp(max=PSNR_CAP)


def psnr_per_image(reconstruction: Tensor, target: Tensor) -> Tensor:
    """PSNR in dB of each image: two (b, c, h, w) in [0, 1] -> (b,) float64, at most PSNR_CAP."""
    return psnr_from_mse(mse_per_image(reconstruction, target))


def ssim_per_image(reconstruction: Tensor, target: Tensor) -> Tensor:
    """Structural similarity of each image: two (b, c, h, w) in [0, 1], h and w at least 11 -> (b,) float64.

    Gaussian window 11, sigma 1.5, data range 1, borders reflected (Wang et al., "Image quality assessment: from
    error visibility to structural similarity", 2004). ValueError for a smaller image.
    """
    height, width = reconstruction.shape[-2:]
    if min(height, width) < SSIM_WINDOW:
        raise ValueError(f"SSIM needs images of at least {SSIM_WINDOW}x{SSIM_WINDOW} pixels, got {height}x{width}")
    # float64, because variances are differences of near-equal means; as two matrix products, because a window
    # of 121 taps over 3 channels is a convolution that CPUs do twenty times slower.
    x, y = reconstruction.double(), target.double()
    rows, columns = _gaussian_blur_matrix(height, x.device), _gaussian_blur_matrix(width, x.device)
    mean_x, mean_y, mean_xx, mean_yy, mean_xy = rows @ torch.stack((x, y, x * x, y * y, x * y)) @ columns.T
    variances = (mean_xx - mean_x**2).clamp(min=0) + (mean_yy - mean_y**2).clamp(min=0)
    covariance = mean_xy - mean_x * mean_y
    luminance = (2 * mean_x * mean_y + 0.01**2) / (mean_x**2 + mean_y**2 + 0.01**2)
    structure = (2 * covariance + 0.03**2) / (variances + 0.03**2)
    return (luminance * structure).flatten(1).mean(1)


def _gaussian_blur_matrix(size: int, device: torch.device) -> Tensor:
    """(size, size) float64: blurs a reflected line of pixels with a Gaussian of sigma 1.5 and 11 taps."""
    taps = torch.arange(SSIM_WINDOW, device=device).double() - SSIM_WINDOW // 2
    gaussian = torch.exp(-(taps**2) / (2 * 1.5**2))
    pixels = torch.eye(size, dtype=torch.float64, device=device)
    reflected = F.pad(pixels[None], (SSIM_WINDOW // 2, SSIM_WINDOW // 2), mode="reflect")[0]
    windows = reflected.unfold(1, SSIM_WINDOW, 1)  # (pixel, output, tap)
    return (windows @ (gaussian / gaussian.sum())).T


class ReconstructionMetrics(Metric):
    """MSE, PSNR and SSIM of reconstructions, each image weighted equally since the last reset."""

    full_state_update = False
    higher_is_better = None
    images: Tensor
    pixels: Tensor
    squared_error: Tensor
    psnr_sum: Tensor
    ssim_sum: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name in ("images", "pixels"):
            self.add_state(name, torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        for name in ("squared_error", "psnr_sum", "ssim_sum"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, reconstruction: Tensor, target: Tensor) -> None:
        """Add float images (b, c, h, w): the target in [0, 1], the reconstruction is clamped to [0, 1].

        ValueError for different shapes, integer images, or a target outside [0, 1].
        """
        _check(reconstruction, target)
        count = target.shape[0]
        if count == 0:
            return
        reconstruction = reconstruction.detach().clamp(0, 1)
        mse = mse_per_image(reconstruction, target)
        self.images += count
        self.pixels += target.numel()
        self.squared_error += mse.sum() * target[0].numel()
        self.psnr_sum += psnr_from_mse(mse).sum()
        self.ssim_sum += ssim_per_image(reconstruction, target).sum()

    def compute(self) -> dict[str, Tensor]:
        """`mse`, `psnr` (dB, mean over images), `psnr_pooled` (dB, of the mse) and `ssim`: 0-dim float64.

        A perfect image counts as PSNR_CAP dB. NaN without any image.
        """
        mse = self.squared_error / self.pixels
        return {
            "mse": mse,
            "psnr": self.psnr_sum / self.images,
            "psnr_pooled": psnr_from_mse(mse),
            "ssim": self.ssim_sum / self.images,
        }


def _check(reconstruction: Tensor, target: Tensor) -> None:
    if reconstruction.shape != target.shape or target.dim() != 4:
        raise ValueError(
            f"reconstruction and target must both be (b, c, h, w), got {tuple(reconstruction.shape)} and {tuple(target.shape)}"
        )
    if not (reconstruction.is_floating_point() and target.is_floating_point()):
        raise ValueError(f"images must be floating point, got {reconstruction.dtype} and {target.dtype}")
    if target.numel() == 0:
        return
    lowest, highest = torch.stack(target.detach().aminmax()).tolist()
    if not (lowest >= 0 and highest <= 1):  # false for NaN too
        raise ValueError(f"target images must lie in [0, 1], got values from {lowest:g} to {highest:g}")

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torchmetrics.functional.image import structural_similarity_index_measure

from vqlab.metrics import PSNR_CAP, ReconstructionMetrics, mse_per_image, psnr_per_image, ssim_per_image


def two_images() -> tuple[Tensor, Tensor]:
    """Targets .5 and reconstructions off by exactly .01 and .2 (float64): MSE 1e-4 and .04."""
    target = torch.full((2, 3, 16, 16), 0.5, dtype=torch.float64)
    sign = torch.where(torch.arange(16) % 2 == 0, 1.0, -1.0).double()
    noise = torch.tensor([0.01, 0.2], dtype=torch.float64)[:, None, None, None]
    return target + noise * sign, target


def some_images(count: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    target = torch.rand(count, 3, 16, 20, generator=generator)
    noise = torch.linspace(0.01, 0.5, count)[:, None, None, None]
    return target + noise * torch.randn(target.shape, generator=generator), target


def evaluate(reconstruction: Tensor, target: Tensor, batch_size: int) -> dict[str, float]:
    metric = ReconstructionMetrics()
    for r, t in zip(reconstruction.split(batch_size), target.split(batch_size), strict=True):
        metric.update(r, t)
    return {name: value.item() for name, value in metric.compute().items()}


@pytest.mark.parametrize("batch_size", [1, 2])
def test_per_image_and_pooled_psnr_are_two_figures(batch_size: int) -> None:
    # 40 dB and 13.98 dB; mean 26.99. Pooled: -10 log10((1e-4 + .04) / 2) = 16.98
    result = evaluate(*two_images(), batch_size)
    assert result["psnr"] == pytest.approx((40 - 10 * math.log10(0.04)) / 2, abs=1e-9)
    assert round(result["psnr"], 2) == 26.99
    assert round(result["psnr_pooled"], 2) == 16.98
    assert result["mse"] == pytest.approx(0.02005, rel=1e-12)


def test_batch_size_and_short_last_batch_do_not_matter() -> None:
    whole = evaluate(*some_images(), 12)
    for batch_size in (1, 5, 7):
        assert evaluate(*some_images(), batch_size) == pytest.approx(whole, rel=1e-12)


def test_against_plain_numpy() -> None:
    reconstruction, target = some_images()
    r, t = reconstruction.double().clamp(0, 1).numpy(), target.double().numpy()
    mse = [float(((a - b) ** 2).sum()) / a.size for a, b in zip(r, t, strict=True)]
    result = evaluate(reconstruction, target, 5)
    assert result["mse"] == pytest.approx(float(np.mean(mse)), rel=1e-10)
    assert result["psnr"] == pytest.approx(float(np.mean([-10 * math.log10(m) for m in mse])), rel=1e-10)
    assert result["psnr_pooled"] == pytest.approx(-10 * math.log10(float(np.mean(mse))), rel=1e-10)
    assert mse_per_image(reconstruction.clamp(0, 1), target).tolist() == pytest.approx(mse, rel=1e-10)


def test_reconstruction_is_clamped() -> None:
    target = torch.tensor([0.0, 1.0]).repeat(128)[None, None, None].expand(1, 3, 16, 256)
    assert evaluate(target * 3 - 1, target, 1)["mse"] == 0.0


def test_perfect_image_counts_as_the_cap() -> None:
    _, target = some_images(2)
    result = evaluate(target, target, 2)
    assert PSNR_CAP == 100.0
    assert result == {"mse": 0.0, "psnr": 100.0, "psnr_pooled": 100.0, "ssim": pytest.approx(1.0, abs=1e-12)}
    off = target.clone()
    off[0] = (off[0] - 0.1).abs()
    assert psnr_per_image(off, target)[1] == 100.0
    assert psnr_per_image(off, target)[0] < 25


def test_reset_between_epochs() -> None:
    reconstruction, target = some_images()
    metric = ReconstructionMetrics()
    metric.update(1 - target, target)
    metric.reset()
    metric.update(reconstruction, target)
    assert {k: v.item() for k, v in metric.compute().items()} == evaluate(reconstruction, target, 12)


def test_merged_states_are_the_whole() -> None:
    reconstruction, target = some_images()
    left, right = ReconstructionMetrics(), ReconstructionMetrics()
    left.update(reconstruction[:9], target[:9])
    right.update(reconstruction[9:], target[9:])
    left.merge_state(right)
    merged = {name: value.item() for name, value in left.compute().items()}
    assert merged == pytest.approx(evaluate(reconstruction, target, 12), rel=1e-12)


def test_autocast_and_memory_layout_change_nothing() -> None:
    reconstruction, target = some_images()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = evaluate(reconstruction, target, 12)
    assert mixed == evaluate(reconstruction, target, 12)
    other = evaluate(reconstruction.to(memory_format=torch.channels_last), target, 12)
    assert other == pytest.approx(evaluate(reconstruction, target, 12), rel=1e-12)


def slow_ssim(x: np.ndarray, y: np.ndarray) -> float:
    """One image (c, h, w): a Gaussian window of 11 around each pixel, reflected at the border."""
    taps = np.exp(-(np.arange(-5, 6) ** 2) / (2 * 1.5**2))
    window = np.outer(taps, taps) / taps.sum() ** 2
    values = []
    for a, b in zip(x, y, strict=True):
        a, b = np.pad(a, 5, mode="reflect"), np.pad(b, 5, mode="reflect")
        for i in range(x.shape[1]):
            for j in range(x.shape[2]):
                p, q = a[i : i + 11, j : j + 11], b[i : i + 11, j : j + 11]
                mean_p, mean_q = (window * p).sum(), (window * q).sum()
                var_p, var_q = (window * (p - mean_p) ** 2).sum(), (window * (q - mean_q) ** 2).sum()
                cov = (window * (p - mean_p) * (q - mean_q)).sum()
                luminance = (2 * mean_p * mean_q + 0.01**2) / (mean_p**2 + mean_q**2 + 0.01**2)
                values.append(luminance * (2 * cov + 0.03**2) / (var_p + var_q + 0.03**2))
    return float(np.mean(values))


def test_ssim_against_plain_loops_and_torchmetrics() -> None:
    reconstruction, target = (images[:4, :, :13].double().clamp(0, 1) for images in some_images(12))
    fast = ssim_per_image(reconstruction, target)
    slow = [slow_ssim(x, y) for x, y in zip(reconstruction.numpy(), target.numpy(), strict=True)]
    assert fast.tolist() == pytest.approx(slow, abs=1e-10)
    library = structural_similarity_index_measure(reconstruction, target, data_range=1.0, reduction="none")
    assert fast.tolist() == pytest.approx(library.tolist(), abs=1e-10)
    assert len(set(fast.tolist())) == 4
    result = evaluate(reconstruction, target, 3)
    assert result["ssim"] == pytest.approx(float(np.mean(slow)), abs=1e-10)


def test_ssim_of_small_images_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 11x11 pixels, got 16x10"):
        ssim_per_image(torch.zeros(1, 3, 16, 10), torch.zeros(1, 3, 16, 10))


@pytest.mark.parametrize(
    ("reconstruction", "target", "message"),
    [
        (torch.zeros(2, 3, 16, 16), torch.full((2, 3, 16, 16), 255.0), r"\[0, 1\]"),
        (torch.zeros(2, 3, 16, 16), torch.full((2, 3, 16, 16), -0.5), r"\[0, 1\]"),
        (torch.zeros(2, 3, 16, 16), torch.full((2, 3, 16, 16), math.nan), r"\[0, 1\]"),
        (torch.zeros(1, 3, 16, 16), torch.zeros(2, 3, 16, 16), r"must both be"),
        (torch.zeros(3, 16, 16), torch.zeros(3, 16, 16), r"must both be"),
        (torch.zeros(1, 3, 16, 16), torch.zeros(1, 3, 16, 16, dtype=torch.uint8), r"floating point"),
    ],
)
def test_wrong_input_is_refused(reconstruction: Tensor, target: Tensor, message: str) -> None:
    metric = ReconstructionMetrics()
    with pytest.raises(ValueError, match=message):
        metric.update(reconstruction, target)
    assert metric.images == 0


def test_a_broken_reconstruction_shows() -> None:
    reconstruction, target = some_images()
    reconstruction[0, 0, 0, 0] = math.nan
    assert all(math.isnan(value) for value in evaluate(reconstruction, target, 12).values())

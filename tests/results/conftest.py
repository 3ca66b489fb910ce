"""Made-up run folders with figures of a plausible size."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

MakeRun = Callable[..., Path]


def level_columns(prefix: str, quantizer: str, size: int, level: int, epoch: np.ndarray) -> dict[str, np.ndarray]:
    ramp = 1 - np.exp(-epoch / 3)
    split = 1.0 if prefix == "train" else 0.98
    name = f"{prefix}/level{level}/"
    if quantizer == "vqvae":
        columns = {
            "utilization": np.round(size * (0.3 + 0.6 * ramp) * split) / size,
            "perplexity": size * (0.2 + 0.5 * ramp) * split,
            "distortion": 0.4 / level * np.exp(-epoch / 8),
            "commitment": 0.1 / level * np.exp(-epoch / 8),
            "revived": np.round(80 * np.exp(-epoch / 2)),
        }
        kept = ("utilization", "perplexity")
    else:
        spread = 0.6 * np.exp(-epoch / 4) / level / split
        ols = 0.3 * np.exp(-epoch / 20) / level / split
        tau = 0.1 * 0.05 ** ((epoch - 1) / max(len(epoch) - 1, 1))
        columns = {
            "utilization": np.round(size * (1 - 0.02 * level * (1 - ramp)) * split) / size,
            "perplexity": size * (0.9 + 0.08 * ramp) * split / level**0.1,
            "soft_perplexity": size * (0.95 + 0.04 * ramp) * split,
            "assignment_perplexity": 1 + size / 4 * np.exp(-epoch / 2) / split,
            "L_q": spread + ols,
            "L_OLS": ols,
            "V": spread,
            "entropy": 2 * np.exp(-epoch / 4),
            "margin": 0.5 * 1.4**epoch / level**2,
            "separation": 0.1 * ramp,
            "separation_nearest": 0.3 * ramp,
            "free_energy": spread + ols - 0.1,
            "tau": tau,
            "temperature": 16 * tau / level,
        }
        kept = ("utilization", "perplexity", "soft_perplexity", "assignment_perplexity", "V", "L_OLS", "L_q")
    return {name + key: value for key, value in columns.items() if prefix == "train" or key in kept}


def quality_columns(quantizer: str, levels: int, epoch: np.ndarray) -> dict[str, np.ndarray]:
    best = {"ddcl": 24.4, "vqvae": 24.2, "none": 29.0}[quantizer] + 1.1 * max(levels - 1, 0)
    psnr = best - 4 * np.exp(-epoch / 3)
    columns = {}
    for kind, offset in (("hard", 0.0), ("soft", 0.35)):
        if kind == "soft" and quantizer != "ddcl":
            continue
        columns |= {
            f"test/{kind}/mse": 10 ** (-(psnr + offset - 0.8) / 10),
            f"test/{kind}/psnr": psnr + offset,
            f"test/{kind}/psnr_pooled": psnr + offset - 0.8,
            f"test/{kind}/ssim": 1 - 10 ** (-(psnr + offset) / 25),
        }
    if quantizer == "ddcl":
        columns["test/gap"] = columns["test/soft/psnr"] - columns["test/hard/psnr"]
    if levels > 1:
        for level in range(1, levels + 1):
            columns[f"test/prefix{level}/psnr"] = psnr - 1.5 * (levels - level) ** 1.3
    return columns


def pictures(quantizer: str, count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    y, x = np.mgrid[0:32, 0:32] / 31
    waves = rng.uniform(1, 9, (count, 3, 2))
    original = np.stack([[np.sin(a * x + b * y + a) * 0.5 + 0.5 for a, b in image] for image in waves])
    images = {"original": original, "hard": original + 0.08 * rng.standard_normal(original.shape)}
    if quantizer == "ddcl":
        images["soft"] = original + 0.04 * rng.standard_normal(original.shape)
    return {name: (255 * values.clip(0, 1)).round().astype(np.uint8) for name, values in images.items()}


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    def make(
        quantizer: str = "ddcl",
        levels: int = 1,
        epochs: int = 10,
        name: str | None = None,
        folder: str | None = None,
        sizes: tuple[int, ...] | None = None,
        images: int = 16,
        blank: tuple[str, ...] = (),
    ) -> Path:
        """Write a run folder; `blank` names columns whose second row is left empty (the only row, if one)."""
        levels = 0 if quantizer == "none" else levels
        sizes = sizes or (512,) * levels
        name = name or f"{quantizer}-{levels}"
        path = tmp_path / (folder or f"runs/{name}")
        path.mkdir(parents=True)
        epoch = np.arange(1, epochs + 1)
        columns: dict[str, Any] = {
            "epoch": epoch,
            "step": 390 * epoch,
            "lr": 1e-3 * (1 - epoch / (epochs + 1)),
            "train/loss": 0.02 + 0.1 * np.exp(-epoch / 2),
            "train/reconstruction": 0.005 + 0.02 * np.exp(-epoch / 2),
            "train/images_per_second": np.full(epochs, 2400.0),
        }
        for prefix in ("train", "test"):
            for level in range(1, levels + 1):
                columns |= level_columns(prefix, quantizer, sizes[level - 1], level, epoch)
        columns |= quality_columns(quantizer, levels, epoch)
        table = pd.DataFrame(columns)
        for column in blank:
            assert column in table, column
            table.loc[min(1, epochs - 1), column] = np.nan
        table.to_csv(path / "metrics.csv", index=False)
        pd.DataFrame({"epoch": [1, 1], "step": [50, 100], "loss": [0.2, 0.1]}).to_csv(path / "steps.csv", index=False)
        rng = np.random.default_rng(0)
        if levels:
            counts = {
                f"level{level}": rng.multinomial(640_000, rng.dirichlet(np.full(size, 0.5 + level)))
                for level, size in enumerate(sizes, start=1)
            }
            np.savez(path / "counts.npz", **counts)
        np.savez_compressed(path / "reconstructions.npz", **pictures(quantizer, images))
        (path / "config.yaml").write_text(yaml.safe_dump({"quantizer": quantizer, "seed": 0}))
        rows = [
            {key: value for key, value in row.items() if key.startswith("test/") and value == value}
            for row in (table.iloc[-1].to_dict(), table.iloc[0].to_dict())
        ]
        summary = {
            "name": name,
            "quantizer": quantizer,
            "codebook_size": list(sizes),
            "levels": levels,
            "topology": "residual",
            "parameters": 1_234_567,
            "epochs": epochs,
            "seconds": 600.0,
            "bits_per_image": 64 * float(np.sum(np.log2(sizes))) if levels else None,
            "test": rows[0],
            "first_epoch": rows[1],
            "command": "python train.py",
        }
        (path / "summary.json").write_text(json.dumps(summary))
        return path

    return make

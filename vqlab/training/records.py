"""The run folder: every file of it is written whole or not at all."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor

from vqlab.config import TrainConfig
from vqlab.data import ImageData
from vqlab.errors import VqlabError
from vqlab.images import as_unit_images
from vqlab.storage import read_json, write_atomically, write_json
from vqlab.tokenizer import Tokenizer

#: Bytes of the largest data.json that is read: it lists every image that cannot be read.
MAX_DATA_BYTES = 256 * 2**20


@dataclass(frozen=True)
class RunFolder:
    """Paths of a run and what is written into them.

    path: runs/NAME.  config: what was asked for.  command: how to do it again.
    """

    path: Path
    config: TrainConfig
    command: str

    @property
    def tokenizer(self) -> Path:
        return self.path / "tokenizer"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoints" / "last.ckpt"

    def write_config(self) -> None:
        """The resolved configuration, as YAML that `--config` reads."""
        text = yaml.safe_dump(self.config.resolved().to_dict(), sort_keys=False)
        write_atomically(self.path / "config.yaml", lambda path: path.write_text(text, encoding="utf-8"))

    def write_data(self, data: ImageData) -> None:
        """What the run learns from: number of images, and those that could not be read, with the reason."""
        content = {
            "name": data.name,
            "image_size": list(data.train.image_size),
            "train_images": len(data.train),
            "test_images": len(data.test),
            "classes": list(data.classes),
            "fingerprint": data.fingerprint,
            "skipped": dict(sorted(data.skipped.items())),
        }
        write_json(self.path / "data.json", content)

    def check_data(self, data: ImageData) -> None:
        """VqlabError where the images are not those that the run was started with."""
        file = self.path / "data.json"
        if not data.fingerprint or not file.is_file():
            return
        content = read_json(file, MAX_DATA_BYTES, f"there is no file {file}")
        if not isinstance(content, dict) or "fingerprint" not in content:
            raise VqlabError(f"{file} does not say which images the run was started with")
        before = content["fingerprint"]
        if before != data.fingerprint:
            raise VqlabError(
                f"the images of {self.config.data} are not those that {self.path} was started with: files were added or removed"
            )

    def write_epoch(
        self,
        epochs: list[dict[str, float]],
        steps: list[dict[str, float]],
        counts: list[Tensor],
        tokenizer: Tokenizer,
        preview: Tensor,
        seconds: float,
    ) -> None:
        """Everything that is known after an epoch: tables, counts, pictures, the tokenizer and the summary."""
        write_table(self.path / "metrics.csv", epochs)
        write_table(self.path / "steps.csv", steps)
        write_arrays(self.path / "counts.npz", {f"level{i}": c.cpu().numpy() for i, c in enumerate(counts, 1)})
        write_arrays(self.path / "reconstructions.npz", reconstruction_arrays(tokenizer, preview))
        tokenizer.save_pretrained(self.tokenizer)
        write_json(self.path / "summary.json", self._summary(epochs, steps, tokenizer, preview, seconds))

    def _summary(
        self, epochs: list[dict[str, float]], steps: list[dict[str, float]], tokenizer: Tokenizer, preview: Tensor, seconds: float
    ) -> dict[str, Any]:
        quantizer = tokenizer.quantizer
        tokens = quantizer.tokens_per_level(tokenizer.token_grid(preview.shape[-2], preview.shape[-1]))
        return {
            "name": self.path.name,
            "quantizer": self.config.quantizer,
            "codebook_size": quantizer.codebook_sizes,
            "codebook_dim": quantizer.codebook_dim,
            "levels": quantizer.num_levels,
            "topology": quantizer.topology,
            "parameters": tokenizer.num_parameters,
            "epochs": len(epochs),
            "seconds": round(seconds, 1),
            "bits_per_image": sum(n * math.log2(size) for n, size in zip(tokens, quantizer.codebook_sizes, strict=True)) or None,
            "entropy_bits_per_image": self._entropy_bits(tokens, epochs[-1]) if quantizer.num_levels else None,
            "test": _test_figures(epochs[-1]),
            "first_epoch": _test_figures(epochs[0]),
            "step_minimum": step_minima(steps),
            "command": self.command,
        }

    @staticmethod
    def _entropy_bits(tokens: list[int], row: dict[str, float]) -> float:
        """Rate under an ideal entropy coder of single ids: tokens x log2 perplexity, over the levels that a decoder needs."""
        return sum(n * math.log2(row[f"test/level{level}/perplexity"]) for level, n in enumerate(tokens, 1) if n)


def step_minima(steps: list[dict[str, float]]) -> dict[str, float]:
    """The smallest V and collapse margin of each level over all logged steps: what the theory says stays >= 0 and > 1."""
    names = dict.fromkeys(name for row in steps for name in row if name.endswith(("/V", "/margin")))
    return {name: min(row[name] for row in steps if name in row) for name in names}


def _test_figures(row: dict[str, float]) -> dict[str, float | None]:
    # JSON has no NaN: a figure without a value is null.
    return {k: (v if np.isfinite(v) else None) for k, v in row.items() if k.startswith("test/")}


def write_table(path: Path, rows: list[dict[str, float]]) -> None:
    """Rows as CSV with the union of all columns in order of appearance; cells without a value are empty."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, lambda temporary: temporary.write_text(text.getvalue(), encoding="utf-8"))


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Named arrays as .npz."""

    def save(temporary: Path) -> None:
        with open(temporary, "wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

    write_atomically(path, save)


@torch.no_grad()
def reconstruction_arrays(tokenizer: Tokenizer, images: Tensor) -> dict[str, np.ndarray]:
    """Original, hard and (where it exists) soft reconstructions of uint8 images (n, 3, h, w), as uint8."""
    was_training = tokenizer.training
    tokenizer.eval()
    try:
        unit = as_unit_images(images, tokenizer.channels).to(next(tokenizer.parameters()).device)
        out = tokenizer(unit)
        pictures = {"original": unit}
        if tokenizer.quantizer.num_levels == 0:
            pictures["hard"] = out.reconstruction
        else:
            pictures["hard"] = tokenizer.decode_indices(out.quantizer.indices)
        if tokenizer.quantizer.is_soft:
            pictures["soft"] = out.reconstruction
    finally:
        tokenizer.train(was_training)
    return {name: (x.clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy() for name, x in pictures.items()}

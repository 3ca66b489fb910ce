"""What the page shows of one run, as plain types: JSON for the script, pictures as data URLs."""

from __future__ import annotations

import base64
import io
import math
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vqlab.data import FilesConfig, load_images
from vqlab.errors import VqlabError
from vqlab.results.plots.reconstructions import MAP, error_map
from vqlab.results.report.atlas import SIDE, Atlas, build_atlases, sprite
from vqlab.results.run import Run
from vqlab.results.style import colour
from vqlab.tokenizer import Tokenizer

#: Codes of a level that the atlas shows, the most used ones.
SHOWN_CODES = 1024
TILES_PER_ROW = 32
PICTURES = 12


def run_content(name: str, run: Run, data_root: str | Path, images: int) -> dict[str, Any]:
    """Everything the page shows of `run`; VqlabError where its tokenizer or its data cannot be read."""
    tokenizer = Tokenizer.from_pretrained(run.path / "tokenizer")
    if images < 1:
        raise VqlabError(f"images must be at least 1, got {images}")
    try:
        files = FilesConfig(**run.config.get("files", {}))
    except TypeError as error:
        raise VqlabError(f"{run.path}: files: {error}") from error
    data = str(run.config.get("data", "cifar10"))
    test = load_images(data, data_root, image_size=run.config.get("image_size"), files=files).test
    images = min(images, len(test))
    atlases = build_atlases(tokenizer, test.plain(torch.arange(images)))
    return {
        "name": name,
        "quantizer": run.quantizer,
        "colour": colour(run.quantizer),
        "images": images,
        "epochs": table_columns(run.metrics),
        "steps": table_columns(run.steps) if run.steps is not None else {},
        "pictures": reconstruction_rows(run),
        "levels": [_level(run, i, atlas) for i, atlas in enumerate(atlases, 1)],
        "stages": level_rows(tokenizer, torch.from_numpy(run.reconstructions["original"][:PICTURES])) if atlases else [],
        "config": yaml.safe_dump(run.config, sort_keys=False),
        "command": str(run.summary.get("command", "")),
    }


def table_columns(table: Any) -> dict[str, list[float | None]]:
    """Columns of a table of numbers, with None for NaN and infinities, which JSON does not have."""
    return {str(name): [_finite(value) for value in table[name]] for name in table}


def reconstruction_rows(run: Run) -> list[dict[str, Any]]:
    """Rows of data URLs: original, soft where it exists, hard, and the error map of the last two."""
    images = {str(name): x[:PICTURES] for name, x in run.reconstructions.items()}
    kinds = [name for name in ("original", "soft", "hard") if name in images]
    rows: list[dict[str, Any]] = [{"label": name, "images": [_url(x) for x in _last(images[name])]} for name in kinds]
    for kind in ("soft", "hard"):
        if kind in images:
            rows.append({"label": f"error {kind}", "images": [_url(x) for x in _heat(error_map(images["original"], images[kind]))]})
    return rows


@torch.no_grad()
def level_rows(tokenizer: Tokenizer, images: Tensor) -> list[dict[str, Any]]:
    """For each level a row of images decoded from the ids of the levels up to it, and a row of its ids as colours."""
    ids, rows = tokenizer.encode(images), []
    for level, size in enumerate(tokenizer.quantizer.codebook_sizes, 1):
        pictures = (tokenizer.decode_indices(ids[..., :level]) * 255).round().byte().cpu().numpy()
        rows.append(
            {"label": f"ids of level {level}", "images": [_url(x) for x in _colours(_as_maps(ids[..., level - 1]).cpu().numpy(), size)]}
        )
        upto = "level 1" if level == 1 else f"levels 1 to {level}"
        rows.append({"label": f"decoded from {upto}", "images": [_url(x) for x in _last(pictures)]})
    return rows


def _as_maps(ids: Tensor) -> Tensor:
    """A sequence (b, n) as maps of one row."""
    return ids if ids.dim() == 3 else ids[:, None]


def _level(run: Run, level: int, atlas: Atlas) -> dict[str, Any]:
    counts = run.counts[level]
    # The most used first; the sorting is stable, so that codes of one count stay in their order.
    shown = np.argsort(-atlas.counts, kind="stable")[:SHOWN_CODES]
    return {
        "level": level,
        "size": len(counts),
        "counts": counts.tolist(),
        "seen": atlas.counts.tolist(),
        "shown": shown.tolist(),
        "filled": atlas.filled.tolist(),
        "neighbours": atlas.neighbours.tolist(),
        "distances": np.round(atlas.distances, 4).tolist(),
        "plane": np.round(atlas.plane, 4).tolist(),
        "variance": np.round(atlas.variance, 4).tolist(),
        "sprite": _url(sprite(atlas.patches[shown], TILES_PER_ROW)),
        "tile": SIDE * atlas.patches.shape[2],
        "per_row": TILES_PER_ROW,
    }


def _finite(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def _last(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return images.transpose(0, 2, 3, 1)


def _heat(error: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Error maps on one scale, 0 to the largest of them: (n, h, w) -> (n, h, w, 3)."""
    shares = error / max(float(error.max()), 1e-3)
    result: NDArray[np.uint8] = (255 * matplotlib.colormaps[MAP](shares)[..., :3]).round().astype(np.uint8)
    return result


def _colours(ids: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
    """A colour for each id, neighbours in number far apart in hue: (n, h, w) -> (n, h, w, 3)."""
    hue = (np.arange(size) * 0.618034) % 1
    palette = matplotlib.colors.hsv_to_rgb(np.stack([hue, np.full(size, 0.55), 0.6 + 0.35 * ((np.arange(size) * 0.381966) % 1)], 1))
    result: NDArray[np.uint8] = (255 * palette[ids]).round().astype(np.uint8)
    return result


def _url(picture: NDArray[np.uint8]) -> str:
    """A uint8 picture (h, w, 3) as a PNG data URL."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")

"""One finished run, read from the folder that training left."""

import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray

from vqlab.errors import VqlabError

SUMMARY_KEYS = (
    "name",
    "quantizer",
    "codebook_size",
    "levels",
    "parameters",
    "epochs",
    "bits_per_image",
    "test",
    "first_epoch",
)


@dataclass(frozen=True)
class Run:
    """What a run folder holds: its configuration, its figures per epoch and per step, codes and pictures.

    `metrics` has one row per epoch, `steps` (None where not written) one per logged step. `counts` maps each level,
    from 1, to the code counts (K,) of the test split; `reconstructions` maps original, hard and, where it exists,
    soft to uint8 images (n, 3, h, w).
    """

    path: Path
    name: str
    quantizer: str
    levels: int
    codebook_size: tuple[int, ...]
    config: dict[str, Any]
    metrics: pd.DataFrame
    steps: pd.DataFrame | None
    summary: dict[str, Any]
    counts: dict[int, NDArray[np.int64]]
    reconstructions: dict[str, NDArray[np.uint8]]

    @classmethod
    def load(cls, path: str | Path) -> "Run":
        """Read a run folder; VqlabError, naming the file, where one is missing, broken or incomplete."""
        path = Path(path)
        if not path.is_dir():
            raise VqlabError(f"{path} is not a run folder: there is no such folder")
        summary = _read(path / "summary.json", lambda file: json.loads(file.read_text()))
        _check_summary(path / "summary.json", summary)
        levels = int(summary["levels"])
        steps = path / "steps.csv"
        return cls(
            path=path,
            name=str(summary["name"]),
            quantizer=str(summary["quantizer"]),
            levels=levels,
            codebook_size=tuple(int(size) for size in summary["codebook_size"]),
            config=_read_config(path / "config.yaml"),
            metrics=_read_table(path / "metrics.csv"),
            steps=_read_table(steps) if steps.exists() else None,
            summary=summary,
            counts=_read_counts(path / "counts.npz", levels),
            reconstructions=_read_reconstructions(path / "reconstructions.npz"),
        )

    @property
    def epochs(self) -> NDArray[np.int64]:
        """Epoch numbers, from 1: one for each row of `metrics`."""
        return self.metrics["epoch"].to_numpy(dtype=np.int64)

    def has(self, column: str) -> bool:
        """Whether `metrics` has at least one finite value under this name."""
        return bool(np.isfinite(self.column(column)).any())

    def column(self, column: str) -> NDArray[np.float64]:
        """Values per epoch, NaN where a cell is empty or the whole column does not exist."""
        if column not in self.metrics:
            return np.full(len(self.metrics), np.nan)
        return self.metrics[column].to_numpy(dtype=np.float64)


def _read(file: Path, reader: Callable[[Path], Any]) -> Any:
    """Apply a reader to a file and turn whatever goes wrong into one line that names it."""
    if not file.exists():
        raise VqlabError(f"{file} is missing: the run did not finish, or the folder is not one of a run")
    try:
        return reader(file)
    except (OSError, ValueError, EOFError, KeyError, yaml.YAMLError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise VqlabError(f"{file} cannot be read: {reason}") from error


def _check_summary(file: Path, summary: Any) -> None:
    if not isinstance(summary, dict):
        raise VqlabError(f"{file} does not hold a JSON object")
    missing = [key for key in SUMMARY_KEYS if key not in summary]
    if missing:
        raise VqlabError(f"{file} lacks {', '.join(missing)}")
    if summary["quantizer"] != "none" and len(summary["codebook_size"]) != summary["levels"]:
        raise VqlabError(f"{file}: codebook_size {summary['codebook_size']} for {summary['levels']} levels")


def _read_config(file: Path) -> dict[str, Any]:
    config = _read(file, lambda f: yaml.safe_load(f.read_text()))
    if not isinstance(config, dict):
        raise VqlabError(f"{file} does not hold a configuration")
    return config


def _read_table(file: Path) -> pd.DataFrame:
    table = _read(file, pd.read_csv)
    if "epoch" not in table or len(table) == 0:
        raise VqlabError(f"{file} has no rows or no column 'epoch'")
    for name in table:
        if not pd.api.types.is_numeric_dtype(table[name]):
            raise VqlabError(f"{file}: column '{name}' holds something that is not a number")
    if table["epoch"].isna().any():
        raise VqlabError(f"{file} has a row without epoch")
    return table


def _read_arrays(file: Path) -> dict[str, NDArray[Any]]:
    def reader(f: Path) -> dict[str, NDArray[Any]]:
        with np.load(f) as archive:
            return {name: archive[name] for name in archive.files}

    arrays: dict[str, NDArray[Any]] = _read(file, reader)
    return arrays


def _read_counts(file: Path, levels: int) -> dict[int, NDArray[np.int64]]:
    if levels == 0:
        return {}  # a plain autoencoder has no codes
    arrays = _read_arrays(file)
    missing = [f"level{level}" for level in range(1, levels + 1) if f"level{level}" not in arrays]
    if missing:
        raise VqlabError(f"{file} lacks {', '.join(missing)}")
    return {level: arrays[f"level{level}"] for level in range(1, levels + 1)}


def _read_reconstructions(file: Path) -> dict[str, NDArray[np.uint8]]:
    arrays = _read_arrays(file)
    for name in ("original", "hard"):
        if name not in arrays:
            raise VqlabError(f"{file} lacks {name}")
    shape = arrays["original"].shape
    for name, images in arrays.items():
        if images.ndim != 4 or images.shape != shape or images.dtype != np.uint8 or len(images) == 0:
            raise VqlabError(f"{file}: {name} is not a uint8 array (n, 3, h, w) like the originals")
    return arrays

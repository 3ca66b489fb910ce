"""Images per second from files to ids, against the bare encoder: `vqlab bench encode`.

The parts and the whole are timed in turn, round after round, in one process; reported are medians over rounds.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from vqlab.config import TrainConfig
from vqlab.data import load_images
from vqlab.data.read import read_image
from vqlab.images import as_unit_images
from vqlab.tokenizer import Tokenizer
from vqlab.training.runtime import tune_process

BATCH = 256


@dataclass(frozen=True)
class EncodeBenchmark:
    """images_per_second: of the encoder alone and of ids from images in memory, of reading files, and from files to ids.

    ids_over_encoder: speed of ids from memory over that of the encoder alone.
    """

    images: int
    images_per_second: dict[str, float]
    ids_over_encoder: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def table(self) -> str:
        """Markdown table and the ratio."""
        lines = ["| part | images/s |", "|---|---:|", *(f"| {name} | {speed:.0f} |" for name, speed in self.images_per_second.items())]
        return "\n".join([*lines, "", f"ids / encoder alone: {self.ids_over_encoder:.3f}"])


def benchmark_encoding(config: TrainConfig, images: int = 1000, rounds: int = 6) -> EncodeBenchmark:
    """Write `images` images of `config.data` as PNG files into a temporary folder and encode them with a fresh tokenizer (CPU, float32)."""
    tune_process(config.run.threads)
    torch.manual_seed(config.seed)
    tokenizer = Tokenizer(config.tokenizer_config()).eval()
    source = load_images(config.data, config.run.data_root).train
    pictures = source.plain(torch.arange(images) % len(source))
    batches = pictures.split(BATCH)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as reader, torch.inference_mode():
        files = _write_files(pictures, Path(folder))
        parts: dict[str, Callable[[], object]] = {
            "encoder alone, from memory": lambda: [tokenizer.encode_features(as_unit_images(batch)) for batch in batches],
            "ids, from memory": lambda: [tokenizer.encode(batch) for batch in batches],
            "reading files": lambda: [_read(chunk) for chunk in files],
            "files to ids": lambda: _encode_files(tokenizer, files, reader),
        }
        seconds: dict[str, list[float]] = {name: [] for name in parts}
        for turn in tqdm(range(rounds + 1), desc="rounds"):
            for name, part in parts.items():
                start = time.perf_counter()
                part()
                if turn:
                    seconds[name].append(time.perf_counter() - start)
    speeds = {name: images / statistics.median(taken) for name, taken in seconds.items()}
    return EncodeBenchmark(images, speeds, speeds["ids, from memory"] / speeds["encoder alone, from memory"])


def _write_files(pictures: Tensor, folder: Path) -> list[list[Path]]:
    """One PNG file an image; the paths in batches."""
    paths = [folder / f"{i:06d}.png" for i in range(len(pictures))]
    for path, picture in zip(paths, pictures, strict=True):
        Image.fromarray(picture.permute(1, 2, 0).contiguous().numpy()).save(path)
    return [paths[i : i + BATCH] for i in range(0, len(paths), BATCH)]


def _read(paths: list[Path]) -> Tensor:
    return torch.stack([read_image(path) for path in paths])


def _encode_files(tokenizer: Tokenizer, files: list[list[Path]], reader: ThreadPoolExecutor) -> list[Tensor]:
    """A thread reads the next batch while the network works on this one."""
    ids, coming = [], reader.submit(_read, files[0])
    for following in [*files[1:], None]:
        images = coming.result()
        if following is not None:
            coming = reader.submit(_read, following)
        ids.append(tokenizer.encode(images))
    return ids

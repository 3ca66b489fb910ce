"""A tiny tokenizer, pictures, and token files of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vqlab import Tokenizer
from vqlab.tokens import EncodeOptions, encode_images, open_images


def make_tokenizer(seed: int = 0, sizes: tuple[int, ...] = (16, 300)) -> Tokenizer:
    torch.manual_seed(seed)
    levels = [{"kind": "vqvae", "codebook_size": size, "init": "random"} for size in sizes]
    config = {
        "channels": 3,
        "latent_dim": 6,
        "encoder": {"name": "conv", "width": 8, "residual_blocks": 0, "residual_width": 4, "downsamplings": 2},
        "quantizer": {"topology": "residual", "normalize": True, "codebook_dim": 4, "levels": levels},
    }
    tokenizer = Tokenizer(config)
    for book in tokenizer.quantizer.codebooks:  # spread out, so that ids differ
        book.codebook.data.normal_(std=0.05)
    return tokenizer.eval()


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return make_tokenizer()


@pytest.fixture(scope="session")
def other_tokenizer() -> Tokenizer:
    return make_tokenizer(seed=1)


def save_picture(path: Path, height: int, width: int, seed: int = 0) -> np.ndarray:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return pixels


@pytest.fixture(scope="session")
def build() -> Callable[..., Tokenizer]:
    return make_tokenizer


@pytest.fixture
def save() -> Callable[..., np.ndarray]:
    return save_picture


@pytest.fixture
def contents() -> Callable[[Path], dict[str, bytes]]:
    """The bytes of every file below a folder, by relative path."""
    return lambda folder: {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """23 PNG files of three sizes in two classes."""
    folder = tmp_path / "pictures"
    sizes = [(8, 8), (16, 12), (4, 20)]
    for i in range(23):
        save_picture(folder / ("cat" if i % 2 else "dog") / f"{i:02d}.png", *sizes[i % 3], seed=i)
    return folder


@pytest.fixture
def tokens(tokenizer: Tokenizer, pictures: Path, tmp_path: Path) -> Path:
    """Token files of `pictures`, five images a shard."""
    encode_images(tokenizer, open_images(str(pictures)), tmp_path / "tokens", EncodeOptions(shard_size=5, batch_size=2))
    return tmp_path / "tokens"

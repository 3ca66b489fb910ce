"""Small tokenizers that have seen a few images."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from vqlab import Tokenizer
from vqlab.data import load_images
from vqlab.images import as_unit_images


@pytest.fixture
def make_tokenizer() -> Callable[..., Tokenizer]:
    def make(quantizer: str, sizes: tuple[int, ...] = (8,), topology: str = "residual") -> Tokenizer:
        """A small tokenizer whose codes have seen two batches, in eval() mode."""
        torch.manual_seed(0)
        levels = [{"kind": quantizer, "codebook_size": size} for size in sizes] if quantizer != "none" else []
        tokenizer = Tokenizer(
            {
                "channels": 3,
                "latent_dim": 4,
                "encoder": {"name": "conv", "width": 8, "residual_blocks": 1, "residual_width": 4},
                "quantizer": {"topology": topology, "normalize": True, "codebook_dim": 4, "levels": levels},
            }
        )
        images = as_unit_images(load_images("sample").train.images[:32])
        with torch.no_grad():
            for _ in range(2):
                tokenizer(images)
                tokenizer.quantizer.after_step()
        return tokenizer.eval()

    return make

"""Shared by tests that train: small configurations, and one golden run per quantizer."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vqlab import Tokenizer
from vqlab.cli.main import train_main
from vqlab.config import TrainConfig
from vqlab.data import load_images
from vqlab.images import as_unit_images
from vqlab.quantizers import PEER_NAMES, QUANTIZER_NAMES

MakeConfig = Callable[..., TrainConfig]

QUIET = {"precision": "float32", "device": "cpu", "threads": 1, "progress": False, "tensorboard": False, "log_every": 1}


@pytest.fixture
def make_config(tmp_path: Path) -> MakeConfig:
    """A run of two epochs that takes well under a second on a few images.

    Keyword arguments override, sections key by key; a section that is None has its defaults.
    """

    def make(**changes: Any) -> TrainConfig:
        content: dict[str, Any] = {
            "quantizer": "ddcl",
            "data": "sample",
            "codebook_size": 16,
            "codebook_dim": 4,
            "epochs": 2,
            "batch_size": 8,
            "lr": 3e-3,
            "name": "run",
            "conv": {"width": 8, "residual_blocks": 1, "residual_width": 4},
            "optim": {"warmup_steps": 3},
            "run": {**QUIET, "root": str(tmp_path / "runs")},
        }
        for name, value in changes.items():
            content[name] = {**content[name], **value} if name in ("conv", "optim", "run") and value is not None else value
        return TrainConfig.from_dict(content)

    return make


def golden_command(quantizer: str, root: Path, name: str) -> list[str]:
    """The golden run: four epochs on the sample, seconds long."""
    options = {
        "quantizer": quantizer,
        "data": "sample",
        **({} if quantizer == "none" else {"codebook_size": 64}),
        "epochs": 4,
        "batch_size": 32,
        "lr": 3e-3,
        "name": name,
        "conv.width": 32,
        "conv.residual_width": 16,
        "optim.warmup_steps": 10,
        "run.root": root,
        "run.precision": "float32",
        "run.device": "cpu",
        "run.threads": 1,
        "run.progress": "false",
        "run.log_every": 5,
    }
    return [word for key, value in options.items() for word in (f"--{key}", str(value))]


@pytest.fixture(scope="session")
def golden_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("golden")


@pytest.fixture(scope="session")
def train_golden(golden_root: Path) -> Callable[[str, str], Path]:
    """Trains the golden run of a quantizer under a name, once."""

    def run(quantizer: str, name: str) -> Path:
        if not (golden_root / name).exists():
            assert train_main(golden_command(quantizer, golden_root, name)) == 0
        return golden_root / name

    return run


@pytest.fixture(params=[name for name in QUANTIZER_NAMES if name not in PEER_NAMES])
def golden(request: pytest.FixtureRequest, train_golden: Callable[[str, str], Path]) -> Path:
    """The run folder of each quantizer's golden run, in turn; peers are trained more briefly, in tests/training/test_run.py."""
    return train_golden(request.param, request.param)


#: Tokenizers of every shape: what encodes, what decodes, how levels stack, and whether tokens have a place.
TOKENIZER_KINDS: dict[str, dict[str, Any]] = {
    "conv": {},
    "conv, hard": {"quantizer": "vqvae"},
    "conv, ViT decoder": {"decoder": "vit", "vit": {"width": 12, "depth": 1, "heads": 1}},
    "timm": {
        "encoder": "timm:vit_tiny_patch16_224",
        "timm": {"patch_size": 4, "image_size": 32, "options": {"depth": 1, "embed_dim": 24, "num_heads": 2}},
        "conv": {"width": 8, "residual_blocks": 0, "residual_width": 4},
    },
    "titok": {"encoder": "titok", "titok": {"tokens": 6, "width": 12, "depth": 1, "heads": 1}, "conv": {}},
    "residual": {"levels": 2, "codebook_size": [16, 8]},
    "cascade": {"levels": 2, "codebook_size": [16, 8], "topology": "cascade"},
    "pyramid": {"levels": 3, "codebook_size": [8, 8, 16], "topology": "pyramid"},
    "pyramid, hard": {"quantizer": "vqvae", "levels": 2, "codebook_size": [8, 16], "topology": "pyramid"},
    "titok, residual": {"encoder": "titok", "titok": {"tokens": 6, "width": 12, "depth": 1, "heads": 1}, "conv": {}, "levels": 2},
}


@pytest.fixture(params=TOKENIZER_KINDS)
def any_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """A small tokenizer of each kind in turn, for 32x32 images, whose codes have seen a batch, in eval() mode."""
    torch.manual_seed(0)
    small = {"codebook_size": 16, "codebook_dim": 4, "conv": {"width": 8, "residual_blocks": 0, "residual_width": 4}}
    tokenizer = Tokenizer(TrainConfig.from_dict({**small, **TOKENIZER_KINDS[request.param]}).tokenizer_config())
    images = as_unit_images(load_images("sample").train.plain(torch.arange(32)))
    with torch.no_grad():
        for _ in range(2):
            tokenizer(images)
            tokenizer.quantizer.after_step()
    return tokenizer.eval()


@pytest.fixture(autouse=True)
def ordinary_process() -> None:
    """Each test starts as in a terminal: Ctrl-C interrupts (a background job ignores it), and small numbers are kept."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_flush_denormal(False)  # training in another test of this process may have set it
    return

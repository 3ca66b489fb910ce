"""Priors on ids whose entropy is known, and trainings that stop in between."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from vqlab import Tokenizer, VqlabError
from vqlab.config import TrainConfig
from vqlab.data import ImageData, ImageSplit, load_images
from vqlab.prior import PriorConfig, resume_prior, sample_images, train_prior
from vqlab.prior import train as module
from vqlab.prior.layout import Layout
from vqlab.prior.model import Prior
from vqlab.prior.storage import PriorFolder, read_tensors
from vqlab.prior.train import Tokens, measure, zeroth_order_bits

pytest.importorskip("transformers", reason="priors need transformers")

SMALL = PriorConfig(width=32, layers=1, heads=2, steps=50, batch_size=32, lr=1e-2, warmup_steps=5, precision="float32", data="sample")
LAYOUT = Layout(4, 4, (8,))


def figures_after_training(folder: Path, ids: torch.Tensor, labels: torch.Tensor, config: PriorConfig) -> dict[str, float]:
    """Train on half of the ids, measure on the other half."""
    half = len(ids) // 2
    tokens = Tokens(ids[:half], labels[:half], ids[half:], labels[half:])
    prior = module._fresh(LAYOUT, ("a", "b") if config.conditional else (), config)
    paths = PriorFolder(folder)
    paths.write_config(prior, {**config.to_dict(), "dimensions": 192, "command": ""})
    module._run(prior, tokens, config, paths)
    return json.loads(paths.summary.read_text())


def test_independent_ids_cost_their_entropy(tmp_path: Path) -> None:
    share = torch.tensor([0.4, 0.2, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05])
    ids = torch.multinomial(share, 1000 * 16, replacement=True, generator=torch.Generator().manual_seed(0)).view(1000, 4, 4, 1)
    found = figures_after_training(tmp_path, ids, torch.zeros(1000, dtype=torch.long), replace(SMALL, conditional=False))
    entropy = float(-(share * share.log2()).sum())
    assert found["zeroth_order_bits_per_token"] == pytest.approx(entropy, abs=0.06)
    assert found["bits_per_token"] == pytest.approx(entropy, abs=0.12)
    assert found["uniform_bits_per_token"] == 3
    assert found["bits_per_image"] == pytest.approx(16 * found["bits_per_token"])
    assert found["bits_per_dim"] == pytest.approx(found["bits_per_image"] / 192)


def test_ids_that_follow_from_the_ones_before_or_the_class_cost_nothing(tmp_path: Path) -> None:
    start = torch.randint(8, (1000, 1), generator=torch.Generator().manual_seed(0))
    counting = ((start + torch.arange(16)) % 8).view(1000, 4, 4, 1)
    found = figures_after_training(tmp_path / "a", counting, torch.zeros(1000, dtype=torch.long), replace(SMALL, conditional=False))
    assert found["bits_per_token"] == pytest.approx(3 / 16, abs=0.05)  # the first id is free
    assert found["zeroth_order_bits_per_token"] == pytest.approx(3, abs=0.01)
    labels = torch.randint(2, (1000,), generator=torch.Generator().manual_seed(1))
    by_class = (labels * 5).view(-1, 1, 1, 1).expand(-1, 4, 4, 1).contiguous()
    assert figures_after_training(tmp_path / "b", by_class, labels, SMALL)["bits_per_token"] < 0.02


def test_zeroth_order_bits_against_numpy() -> None:
    ids = torch.randint(8, (50, 4, 4, 2), generator=torch.Generator().manual_seed(0))
    for level, found in enumerate(zeroth_order_bits(ids, Layout(4, 4, (8, 8)))):
        share = np.bincount(ids[..., level].flatten(), minlength=8) / 800
        assert found == pytest.approx(-(share * np.log2(share)).sum())


def test_an_untrained_prior_is_near_uniform_at_every_level() -> None:
    layout = Layout(4, 4, (8, 32))
    prior = Prior(layout, (), width=16, layers=1, heads=2).eval()
    ids = torch.stack([torch.randint(8, (300, 4, 4)), torch.randint(32, (300, 4, 4))], -1)
    found = measure(prior, ids, torch.zeros(300, dtype=torch.long), 3072)
    for level, bits in zip(found["levels"], (3, 5), strict=True):
        assert level["bits_per_token"] == pytest.approx(bits, abs=0.05)
    assert found["bits_per_image"] == pytest.approx(16 * 8, abs=1)
    assert found["bits_per_token"] == pytest.approx(found["bits_per_image"] / 32)


# -- from images to a folder and back ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    torch.manual_seed(0)
    config = TrainConfig.from_dict({"codebook_size": 16, "levels": 2, "codebook_dim": 4, "conv": {"width": 8, "residual_blocks": 0}})
    return Tokenizer(config.tokenizer_config()).eval()


@pytest.fixture(scope="module")
def data() -> ImageData:
    whole = load_images("sample")
    train, test = (ImageSplit(split.images[:60], split.labels[:60]) for split in (whole.train, whole.test))
    return replace(whole, train=train, test=test)


TINY = replace(SMALL, steps=6, batch_size=16, save_every=2, log_every=1)


def test_the_folder_gives_back_the_prior_and_its_tokenizer(tokenizer: Tokenizer, data: ImageData, tmp_path: Path) -> None:
    path = train_prior(tokenizer, data, TINY, tmp_path / "prior")
    prior, loaded = PriorFolder(path).load()
    summary = json.loads((path / "summary.json").read_text())
    ids = loaded.encode(data.test.images)
    assert torch.equal(ids, tokenizer.encode(data.test.images))
    again = measure(prior, ids, data.test.labels, 3072)
    assert again["bits_per_dim"] == pytest.approx(summary["bits_per_dim"], rel=1e-5)
    assert (
        summary["parameters"] == prior.num_parameters == sum(tensor.numel() for tensor in read_tensors(path / "model.safetensors").values())
    )
    assert (summary["steps"], summary["images_seen"], summary["test_images"]) == (6, 96, 60)
    table = pd.read_csv(path / "metrics.csv")
    assert list(table["step"]) == [1, 2, 3, 4, 5, 6]
    assert table["train_bits_per_token"].iloc[0] == pytest.approx(4, abs=0.7)  # not yet learned
    images, labels = sample_images(prior, loaded, 12)
    assert images.shape == (12, 3, 32, 32)
    assert labels is not None
    assert labels.tolist() == [*range(10), 0, 1]
    assert torch.equal(sample_images(prior, loaded, 12)[0], images)
    with pytest.raises(VqlabError, match="--resume"):
        train_prior(tokenizer, data, TINY, path)


def test_a_stopped_training_goes_on_as_if_it_had_not_stopped(
    tokenizer: Tokenizer, data: ImageData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train_prior(tokenizer, data, TINY, tmp_path / "whole")

    class AtStepThree:
        asked_before = 0

        @property
        def asked(self) -> bool:
            self.asked_before += 1
            return self.asked_before > 4  # two looks in each step but those that save anyway

    @contextmanager
    def stop() -> Iterator[AtStepThree]:
        yield AtStepThree()

    with monkeypatch.context() as patch:
        patch.setattr(module, "stop_on_signal", stop)
        with pytest.raises(KeyboardInterrupt, match="vqlab prior --resume"):
            train_prior(tokenizer, data, TINY, tmp_path / "parts")
    assert not (tmp_path / "parts" / "model.safetensors").exists()
    stopped_at = torch.load(tmp_path / "parts" / "checkpoint.ckpt", weights_only=True)["step"]
    assert 0 < stopped_at < 6
    parts = resume_prior(tmp_path / "parts")
    first, second = (read_tensors(path / "model.safetensors") for path in (whole, parts))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert (whole / "metrics.csv").read_text() == (parts / "metrics.csv").read_text()


def test_a_prior_of_every_kind_of_tokenizer(any_tokenizer: Tokenizer, data: ImageData, tmp_path: Path) -> None:
    path = train_prior(any_tokenizer, data, replace(TINY, steps=2), tmp_path / "prior")
    prior, loaded = PriorFolder(path).load()
    figures = json.loads((path / "summary.json").read_text())
    counts = any_tokenizer.quantizer.tokens_per_level(any_tokenizer.token_grid(32, 32))
    assert prior.layout.length == sum(counts)
    assert figures["bits_per_image"] == pytest.approx(figures["bits_per_token"] * sum(counts))
    assert sum(
        level["bits_per_token"] * count for level, count in zip(figures["levels"], filter(None, counts), strict=True)
    ) == pytest.approx(figures["bits_per_image"])
    images, _ = sample_images(prior, loaded, 10)
    assert images.shape == (10, 3, 32, 32)
    assert torch.isfinite(images).all()


def test_images_that_would_be_padded_are_refused(tokenizer: Tokenizer, data: ImageData, tmp_path: Path) -> None:
    cut = ImageSplit(data.train.plain(torch.arange(20))[..., :30].contiguous(), data.train.labels[:20])
    with pytest.raises(VqlabError, match="32x30"):
        train_prior(tokenizer, replace(data, train=cut), TINY, tmp_path / "prior")
    assert not (tmp_path / "prior").exists()


def test_every_image_once_an_epoch() -> None:
    loop = module._Loop(Prior(LAYOUT, (), width=16, layers=1, heads=2), replace(SMALL, batch_size=10))
    epochs = []
    for epoch in range(2):
        seen = []
        for step in range(4):
            loop.step = 4 * epoch + step
            seen += loop.batch(40).tolist()
        assert sorted(seen) == list(range(40))
        epochs.append(seen)
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / "config.json").unlink(), "not a prior"),
        (lambda path: (path / "config.json").write_text("{}"), "config.json"),
        (lambda path: (path / "model.safetensors").write_bytes(b"x"), "model.safetensors"),
        (lambda path: (path / "tokenizer" / "config.json").unlink(), "tokenizer"),
    ],
)
def test_damaged_folders_are_named(damage: object, message: str, tokenizer: Tokenizer, data: ImageData, tmp_path: Path) -> None:
    path = train_prior(tokenizer, data, replace(TINY, steps=1), tmp_path / "prior")
    assert callable(damage)
    damage(path)
    with pytest.raises(VqlabError, match=message):
        PriorFolder(path).load()


def test_refused_settings() -> None:
    for name, value in (("steps", 0), ("heads", 3), ("lr", math.inf), ("seed", -1)):
        with pytest.raises(VqlabError, match=name):
            replace(PriorConfig(), **{name: value})
    with pytest.raises(VqlabError, match="nosuch"):
        PriorConfig.from_dict({"nosuch": 1})

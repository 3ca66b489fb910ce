"""One pass over a split: right figures, whatever the batch size, and nothing left over from another pass."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from vqlab.data import load_images
from vqlab.evaluation import Evaluation
from vqlab.images import as_unit_images
from vqlab.metrics import psnr_per_image
from vqlab.quantizers import QUANTIZER_NAMES
from vqlab.tokenizer import Tokenizer

KINDS = {
    **{name: {"quantizer": name} for name in QUANTIZER_NAMES},
    "residual": {"levels": 3, "codebook_size": [16, 8, 4]},
    "cascade": {"levels": 2, "topology": "cascade"},
    "residual-vqvae": {"quantizer": "vqvae", "levels": 2},
}


@pytest.fixture
def images() -> torch.Tensor:
    return as_unit_images(load_images("sample").test.images[:50])


@pytest.fixture
def make_tokenizer(make_config: Any, images: torch.Tensor) -> Any:
    """A tokenizer in eval() mode whose codebooks and statistics have seen data."""

    def make(**changes: Any) -> Tokenizer:
        torch.manual_seed(0)
        tokenizer = Tokenizer(make_config(**changes).tokenizer_config())
        for _ in range(3):
            tokenizer.train()(images)
            tokenizer.quantizer.after_step()
        return tokenizer.eval()

    return make


def evaluate(tokenizer: Tokenizer, *batches: torch.Tensor) -> dict[str, float]:
    evaluation = Evaluation(tokenizer)
    for batch in batches:
        evaluation.update(tokenizer, batch)
    return evaluation.compute()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(1,) * 50, (49, 1), (7, 7, 7, 7, 7, 7, 7, 1)])
def test_batch_size_does_not_matter(kind: str, sizes: tuple[int, ...], make_tokenizer: Any, images: torch.Tensor) -> None:
    tokenizer = make_tokenizer(**KINDS[kind])
    whole, parts = evaluate(tokenizer, images), evaluate(tokenizer, *images.split(sizes))
    assert whole.keys() == parts.keys()
    for name, value in whole.items():
        assert math.isfinite(value), name
        assert parts[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name


@pytest.mark.parametrize("kind", KINDS)
def test_figures_against_the_public_interface(kind: str, make_tokenizer: Any, images: torch.Tensor) -> None:
    tokenizer = make_tokenizer(**KINDS[kind])
    figures = evaluate(tokenizer, *images.split(20))
    with torch.no_grad():
        out = tokenizer(images)
    levels = tokenizer.quantizer.num_levels
    if levels == 0:
        assert set(figures) == {"hard/mse", "hard/psnr", "hard/psnr_pooled", "hard/ssim"}
        hard = out.reconstruction.clamp(0, 1)
    else:
        ids = tokenizer.encode(images)
        hard = tokenizer.decode_indices(ids)
        for level in range(1, levels + 1):
            counts = torch.bincount(ids[..., level - 1].flatten(), minlength=tokenizer.quantizer.codebook_sizes[level - 1])
            share = counts[counts > 0].double() / counts.sum()
            assert figures[f"level{level}/utilization"] == pytest.approx(float((counts > 0).double().mean()))
            assert figures[f"level{level}/perplexity"] == pytest.approx(math.exp(-float((share * share.log()).sum())), rel=1e-9)
            if levels > 1:
                prefix = tokenizer.decode_indices(ids[..., :level])
                assert figures[f"prefix{level}/psnr"] == pytest.approx(float(psnr_per_image(prefix, images).mean()), abs=1e-4)
        assert ("prefix1/psnr" in figures) == (levels > 1)
    assert figures["hard/mse"] == pytest.approx(float((hard - images).square().mean()), rel=1e-5)
    assert figures["hard/psnr"] == pytest.approx(float(psnr_per_image(hard, images).mean()), abs=1e-4)
    if tokenizer.quantizer.is_soft:
        soft = out.reconstruction.clamp(0, 1)
        assert figures["soft/psnr"] == pytest.approx(float(psnr_per_image(soft, images).mean()), abs=1e-4)
        assert figures["gap"] == figures["soft/psnr"] - figures["hard/psnr"]
        for level in range(1, levels + 1):
            if "V" not in tokenizer.quantizer.codebooks[level - 1].part_names:
                continue
            assert figures[f"level{level}/V"] >= 0
            assert figures[f"level{level}/L_q"] == pytest.approx(figures[f"level{level}/L_OLS"] + figures[f"level{level}/V"], rel=1e-5)
    else:
        assert not [name for name in figures if "soft" in name or name == "gap"]


def test_counts(make_tokenizer: Any, images: torch.Tensor) -> None:
    tokenizer = make_tokenizer(levels=2)
    evaluation = Evaluation(tokenizer)
    evaluation.update(tokenizer, images)
    ids = tokenizer.encode(images)
    for level, counts in enumerate(evaluation.counts()):
        assert counts.dtype == torch.int64
        assert torch.equal(counts, torch.bincount(ids[..., level].flatten(), minlength=16))


@pytest.mark.parametrize("kind", KINDS)
def test_second_pass_starts_from_nothing(kind: str, make_tokenizer: Any, images: torch.Tensor) -> None:
    tokenizer = make_tokenizer(**KINDS[kind])
    evaluation = Evaluation(tokenizer)
    evaluation.update(tokenizer, images[:30])  # a sanity check, or the epoch before
    evaluation.compute()
    evaluation.reset()
    evaluation.update(tokenizer, images[30:])
    fresh = evaluate(tokenizer, images[30:])
    assert evaluation.compute() == fresh
    assert evaluation.compute() == fresh  # asking twice changes nothing


@pytest.mark.parametrize("kind", KINDS)
def test_measuring_changes_nothing(kind: str, make_tokenizer: Any, images: torch.Tensor) -> None:
    tokenizer = make_tokenizer(**KINDS[kind])
    before = {name: value.clone() for name, value in tokenizer.state_dict().items()}
    evaluate(tokenizer, images)
    assert all(torch.equal(before[name], value) for name, value in tokenizer.state_dict().items())


@pytest.mark.parametrize("kind", KINDS)
def test_training_mode_is_refused(kind: str, make_tokenizer: Any, images: torch.Tensor) -> None:
    tokenizer = make_tokenizer(**KINDS[kind])
    evaluation = Evaluation(tokenizer)
    with pytest.raises(ValueError, match=r"eval\(\) mode"):
        evaluation.update(tokenizer.train(), images)


def test_targets_outside_the_unit_range_are_refused(make_tokenizer: Any, images: torch.Tensor) -> None:
    tokenizer = make_tokenizer()
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        Evaluation(tokenizer).update(tokenizer, images * 2 - 1)


def test_autocast_changes_no_usage(make_tokenizer: Any, images: torch.Tensor) -> None:
    """Counts and entropies are exact also where the networks around run in bfloat16."""
    tokenizer = make_tokenizer()
    with torch.autocast("cpu", torch.bfloat16):
        evaluation = Evaluation(tokenizer)
        evaluation.update(tokenizer, images)
        figures, ids = evaluation.compute(), tokenizer.encode(images)
    counts = torch.bincount(ids.flatten(), minlength=16)
    share = counts[counts > 0].double() / counts.sum()
    assert figures["level1/perplexity"] == pytest.approx(math.exp(-float((share * share.log()).sum())), rel=1e-9)
    assert int(evaluation.counts()[0].sum()) == 50 * 64

"""The Lightning module on its own: schedule, parameter groups, what the decoder reads, figures of an epoch."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from vqlab.data import ImageBatch
from vqlab.quantizers import QUANTIZER_NAMES
from vqlab.tokenizer import Tokenizer
from vqlab.training.module import TokenizerModule, warmup_cosine


@pytest.fixture
def make_module(make_config: Any) -> Any:
    def make(total_steps: int = 10, **changes: Any) -> TokenizerModule:
        torch.manual_seed(0)
        config = make_config(**changes)
        tokenizer = Tokenizer(config.tokenizer_config())
        return TokenizerModule(tokenizer, config.optim, lr=config.lr, pixel_variance=0.06, total_steps=total_steps).train()

    return make


@pytest.fixture
def batch() -> ImageBatch:
    generator = torch.Generator().manual_seed(1)
    return ImageBatch(torch.randint(0, 256, (8, 3, 16, 16), dtype=torch.uint8, generator=generator), torch.zeros(8, dtype=torch.int64))


# -- learning rate ------------------------------------------------------------------------------------------------------------------


def test_warmup_cosine() -> None:
    factors = [warmup_cosine(step, 100, 20, 0.1) for step in range(101)]
    np.testing.assert_allclose(factors[:20], np.arange(1, 21) / 21)
    assert factors[20] == 1.0
    assert factors[60] == pytest.approx((1 + 0.1) / 2)
    assert factors[100] == pytest.approx(0.1)
    assert all(a > b for a, b in pairwise(factors[20:]))
    assert warmup_cosine(500, 100, 20, 0.1) == pytest.approx(0.1)  # and no rise after the end


def test_warmup_takes_at_most_half_of_a_short_training() -> None:
    assert warmup_cosine(5, 10, 200, 0.0) == 1.0
    assert warmup_cosine(4, 10, 200, 0.0) == pytest.approx(5 / 6)
    assert warmup_cosine(0, 1, 200, 0.0) == 1.0
    assert warmup_cosine(0, 10, 0, 0.0) == 1.0


def test_learning_rates_of_a_run(make_module: Any) -> None:
    module = make_module(10, lr=2e-3, optim={"warmup_steps": 3, "epsilon": 0.05, "final_lr": 0.1})
    made = module.configure_optimizers()
    optimizer, schedule = made["optimizer"], made["lr_scheduler"]
    assert schedule["interval"] == "step"
    rates = []
    for _ in range(11):
        rates.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        schedule["scheduler"].step()
    cosine = [0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * x / 7)) for x in range(8)]
    np.testing.assert_allclose(np.array(rates)[:, 0], 2e-3 * np.array([0.25, 0.5, 0.75, *cosine]))
    np.testing.assert_allclose(np.array(rates)[:, 1], np.array(rates)[:, 0] / 0.05)


# -- parameter groups -----------------------------------------------------------------------------------------------------------------


CODEBOOK_NAMES = {"ddcl": "prototypes", "vqvae": "codebook"}


@pytest.mark.parametrize(
    ("kind", "levels"), [("none", 1), *((kind, levels) for kind in ("ddcl", "vqvae-gradient", "vqvae-ema") for levels in (1, 2))]
)
def test_parameter_groups(kind: str, levels: int, make_module: Any) -> None:
    quantizer, _, update = kind.partition("-")
    changes = {"vqvae": {"update": update}} if update else {}
    module = make_module(quantizer=quantizer, levels=levels, lr=1e-3, optim={"epsilon": 0.02, "weight_decay": 0.3}, **changes)
    groups = module.configure_optimizers()["optimizer"].param_groups
    names = {id(p): name for name, p in module.named_parameters()}
    owned = [{names[id(p)] for p in group["params"]} for group in groups]
    books = {name for name in names.values() if name.rpartition(".")[2] in CODEBOOK_NAMES.values()}
    assert len(books) == (0 if quantizer == "none" else levels)
    if kind in ("ddcl", "vqvae-gradient"):
        assert owned[1] == books
        assert groups[1]["initial_lr"] == pytest.approx(1e-3 / 0.02)
        assert groups[1]["weight_decay"] == 0.0
    else:
        assert len(groups) == 1
    assert owned[0] == set(names.values()) - books
    assert groups[0]["initial_lr"] == 1e-3
    assert groups[0]["weight_decay"] == 0.3


# -- what the decoder reads -----------------------------------------------------------------------------------------------------------


def test_decoder_reads_codes_for_the_stated_share(make_module: Any, batch: ImageBatch) -> None:
    module = make_module(optim={"hard_fraction": 0.25, "level_dropout": 0.5})
    quantizer = module.tokenizer.quantizer
    features = module.tokenizer.encode_features(module._unit(batch.images)).detach().requires_grad_()
    out = quantizer(features)
    read = module.decoder_input(out)
    codes = quantizer.decode_indices(out.indices)
    torch.testing.assert_close(read[:2], codes[:2])
    assert torch.equal(read[2:], out.quantized[2:])
    assert not torch.allclose(codes[2:], out.quantized[2:])  # else the line before says nothing
    # Images that are read as codes send no gradient to the encoder or the prototypes; the others do.
    for rows, silent in ((slice(0, 2), True), (slice(2, None), False)):
        target = read[rows].square().sum()
        for source in (features, quantizer.levels[0].prototypes):
            (gradient,) = torch.autograd.grad(target, source, retain_graph=True, allow_unused=True, materialize_grads=True)
            assert bool(gradient.eq(0).all()) is silent


@pytest.mark.parametrize(("hard", "short"), [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (0.5, 0.5), (0.25, 0.25)])
@pytest.mark.parametrize("topology", ["residual", "cascade"])
def test_decoder_reads_prefixes_of_stacks(hard: float, short: float, topology: str, make_module: Any, batch: ImageBatch) -> None:
    module = make_module(levels=3, topology=topology, optim={"hard_fraction": hard, "level_dropout": short})
    quantizer = module.tokenizer.quantizer
    out = quantizer(module.tokenizer.encode_features(module._unit(batch.images)))
    assert torch.equal(out.prefixes[-1], out.quantized)
    seen: set[int] = set()
    for _ in range(10):
        read = module.decoder_input(out)
        assert read.shape == out.quantized.shape
        first, second = round(8 * hard), round(8 * (hard + short))
        torch.testing.assert_close(read[:first], quantizer.decode_indices(out.indices)[:first])
        assert torch.equal(read[second:], out.quantized[second:])
        for image in range(first, second):
            matches = [level for level in range(3) if torch.equal(read[image], out.prefixes[level][image])]
            assert len(matches) == 1
            seen.add(matches[0])
    assert seen == ({0, 1} if short else set())


@pytest.mark.parametrize("quantizer", ["vqvae", "none"])
def test_hard_quantizers_and_none_are_read_as_they_are(quantizer: str, make_module: Any, batch: ImageBatch) -> None:
    module = make_module(quantizer=quantizer, optim={"hard_fraction": 0.5, "level_dropout": 0.5})
    out = module.tokenizer.quantizer(module.tokenizer.encode_features(module._unit(batch.images)))
    assert module.decoder_input(out) is out.quantized


# -- figures --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quantizer", QUANTIZER_NAMES)
def test_loss_is_scaled_reconstruction_plus_the_quantizers(quantizer: str, make_module: Any, batch: ImageBatch) -> None:
    module = make_module(quantizer=quantizer, optim={"hard_fraction": 0.0})
    unit = batch.images.float() / 255
    out = module.tokenizer(unit)  # the first pass initialises codes and statistics
    out = module.tokenizer(unit)
    expected = (out.reconstruction - unit).square().mean() / 0.06 + out.quantizer.loss
    loss = module.training_step(batch, 0)
    if quantizer != "gumbel":  # two passes draw different noise
        torch.testing.assert_close(loss, expected, rtol=1e-3, atol=1e-5)
    assert torch.equal(module.latest["loss"], loss.detach())
    loss.backward()
    moved = [name for name, p in module.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.abs().max() > 0)]
    assert moved == []


def test_figures_of_an_epoch(make_module: Any, batch: ImageBatch) -> None:
    module = make_module(levels=2)
    losses, counts = [], torch.zeros(2, 16, dtype=torch.int64)
    for _ in range(3):
        losses.append(module.training_step(batch, 0).item())
        ids = module.tokenizer.eval().encode(batch.images)
        module.train()
        counts += torch.stack([torch.bincount(ids[..., level].flatten(), minlength=16) for level in range(2)])
    figures = module.train_figures()
    assert figures["loss"] == pytest.approx(sum(losses) / 3, rel=1e-6)
    for level in (1, 2):
        assert module.train_levels[level - 1].usage.counts.sum() == 3 * 8 * 16
        assert 0 < figures[f"level{level}/utilization"] <= 1
        assert figures[f"level{level}/L_q"] == pytest.approx(figures[f"level{level}/L_OLS"] + figures[f"level{level}/V"], rel=1e-5)
        for name in ("margin", "separation", "separation_nearest", "soft_perplexity", "assignment_perplexity", "tau", "free_energy"):
            assert math.isfinite(figures[f"level{level}/{name}"])
    module.reset_train_figures()
    assert module.train_levels[0].usage.counts.sum() == 0
    second = module.training_step(batch, 0).item()
    assert module.train_figures()["loss"] == pytest.approx(second, rel=1e-6)


def test_images_become_unit_floats_in_the_wanted_layout(make_config: Any, batch: ImageBatch) -> None:
    config = make_config()
    module = TokenizerModule(
        Tokenizer(config.tokenizer_config()),
        config.optim,
        lr=1e-3,
        pixel_variance=0.06,
        total_steps=1,
        memory_format=torch.channels_last,
    )
    unit = module._unit(batch.images)
    assert torch.equal(unit, batch.images.float() / 255)
    assert unit.is_contiguous(memory_format=torch.channels_last)
    assert module.tokenizer.encoder.layers[0].weight.is_contiguous(memory_format=torch.channels_last)

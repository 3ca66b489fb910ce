"""The configuration of a run: round trips, and every contradiction refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from vqlab.backbones import ConvConfig
from vqlab.config import OptimConfig, RunConfig, TrainConfig
from vqlab.errors import VqlabError
from vqlab.quantizers import QUANTIZER_NAMES
from vqlab.tokenizer import Tokenizer


@pytest.mark.parametrize("quantizer", QUANTIZER_NAMES)
def test_every_quantizer_has_defaults_that_build(quantizer: str) -> None:
    config = TrainConfig(quantizer=quantizer, conv=ConvConfig(width=8))
    tokenizer = Tokenizer(config.tokenizer_config())
    assert tokenizer.quantizer.codebook_sizes == ([] if quantizer == "none" else [512])
    assert tokenizer.quantizer.codebook_dim == config.latent_dim


@pytest.mark.parametrize(
    "config",
    [
        TrainConfig(),
        TrainConfig(quantizer="none", normalize_latents=False),
        TrainConfig(quantizer="vqvae", codebook={"update": "gradient", "commitment_weight": 0.5}),
        TrainConfig(levels=2, codebook_size=[64, 32], codebook_dim=8, topology="cascade", name="a", lr=1e-4, seed=3),
        TrainConfig(conv=ConvConfig(width=16), optim=OptimConfig(epsilon=0.05), run=RunConfig(root="elsewhere", precision="bf16")),
    ],
)
def test_yaml_round_trip(config: TrainConfig) -> None:
    assert TrainConfig.from_dict(yaml.safe_load(yaml.safe_dump(config.to_dict()))) == config
    assert TrainConfig.from_dict(config.to_dict()) == config


def test_from_dict_leaves_its_argument_alone() -> None:
    content = TrainConfig(codebook={"tau_end": 0.01}).to_dict()
    before = yaml.safe_dump(content)
    TrainConfig.from_dict(content)
    assert yaml.safe_dump(content) == before


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({}, [512]),
        ({"levels": 3}, [512, 512, 512]),
        ({"levels": 3, "topology": "cascade"}, [512, 128, 32]),
        ({"levels": 3, "topology": "cascade", "codebook_size": 8}, [8, 2, 1]),
        ({"levels": 2, "codebook_size": [3, 5]}, [3, 5]),
        ({"quantizer": "none"}, []),
    ],
)
def test_codebook_sizes(changes: dict[str, Any], sizes: list[int]) -> None:
    assert TrainConfig(**changes).codebook_sizes == sizes


def test_settings_reach_every_level() -> None:
    config = TrainConfig(levels=2, codebook_size=[8, 4], codebook={"tau_end": 0.02}, codebook_dim=6, normalize_latents=False)
    tokenizer = Tokenizer(config.tokenizer_config())
    assert [(book.codebook_size, book.dim, book.schedule.end) for book in tokenizer.quantizer.codebooks] == [(8, 6, 0.02), (4, 6, 0.02)]
    assert tokenizer.quantizer.normalize is False


nan, inf = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"nosuch": 1}, "nosuch"),
        ({"optim": {"nosuch": 1}}, "nosuch"),
        ({"conv": {"nosuch": 1}}, "nosuch"),
        ({"run": {"nosuch": 1}}, "nosuch"),
        ({"quantizer": "pq"}, "softvq, vqvae, none"),
        ({"encoder": "swin"}, "conv"),
        ({"topology": "tree"}, "residual, cascade"),
        ({"vqvae": {"ema_decay": 0.9}}, "vqvae.ema_decay is set, but quantizer is ddcl"),
        ({"quantizer": "vqvae", "ddcl": {"tau_end": 0.1}}, "ddcl.tau_end is set, but quantizer is vqvae"),
        ({"quantizer": "none", "ddcl": {"tau_end": 0.1}}, "ddcl.tau_end is set, but quantizer is none"),
        ({"quantizer": "none", "levels": 2}, "none has no levels"),
        ({"levels": 2, "codebook_size": [8]}, "lists 1 levels, but levels is 2"),
        ({"codebook_size": [8, 8]}, "lists 2 levels, but levels is 1"),
        ({"codebook_size": 0}, "codebook_size must be at least 1"),
        ({"codebook_size": [0]}, "codebook_size must be at least 1"),
        ({"codebook_size": -5, "levels": 2, "topology": "cascade"}, "codebook_size must be at least 1"),
        ({"codebook_dim": 0}, "codebook_dim"),
        ({"levels": 0}, "levels must be at least 1"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"lr": 0.0}, "lr must be positive"),
        ({"lr": nan}, "lr must be positive"),
        ({"lr": inf}, "lr must be positive"),
        ({"seed": -1}, "seed"),
        ({"lr": "fast"}, "lr must be of type float"),
        ({"conv": {"width": 0}}, "width"),
        ({"conv": {"downsamplings": 1.5}}, "downsamplings"),
        ({"optim": {"epsilon": 0.0}}, "optim.epsilon"),
        ({"optim": {"epsilon": inf}}, "optim.epsilon"),
        ({"optim": {"weight_decay": -0.1}}, "optim.weight_decay"),
        ({"optim": {"weight_decay": nan}}, "optim.weight_decay"),
        ({"optim": {"warmup_steps": -1}}, "optim.warmup_steps"),
        ({"optim": {"final_lr": 1.5}}, "optim.final_lr"),
        ({"optim": {"gradient_clip": -1.0}}, "optim.gradient_clip"),
        ({"optim": {"accumulate": 0}}, "optim.accumulate"),
        ({"optim": {"hard_fraction": 1.1}}, "optim.hard_fraction"),
        ({"optim": {"hard_fraction": nan}}, "optim.hard_fraction"),
        ({"optim": {"level_dropout": -0.1}}, "optim.level_dropout"),
        ({"optim": {"hard_fraction": 0.6, "level_dropout": 0.6}}, "must not exceed 1"),
        ({"run": {"precision": "float16"}}, "run.precision"),
        ({"run": {"log_every": 0}}, "run.log_every"),
        ({"run": {"eval_batch_size": 0}}, "run.eval_batch_size"),
        ({"run": {"threads": -1}}, "run.threads"),
        ({"run": {"usage_warning": 2.0}}, "run.usage_warning"),
    ],
)
def test_refused(content: dict[str, Any], message: str) -> None:
    with pytest.raises(VqlabError) as caught:
        TrainConfig.from_dict(content)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [{"conv": 3}, {"optim": [1]}, {"ddcl": 3}, {"run": "here"}])
def test_sections_that_are_no_mappings(content: dict[str, Any]) -> None:
    with pytest.raises(VqlabError):
        TrainConfig.from_dict(content)


def test_settings_of_the_codebook_are_checked_where_it_is_built() -> None:
    config = TrainConfig(codebook={"nosuch": 1}, conv=ConvConfig(width=8))
    with pytest.raises(VqlabError, match="unknown setting 'nosuch' of quantizer 'ddcl'"):
        Tokenizer(config.tokenizer_config())

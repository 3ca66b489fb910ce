"""The encoding benchmark times the same images in memory and as files."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vqlab.backbones import ConvConfig
from vqlab.benchmarks.encode import benchmark_encoding
from vqlab.benchmarks.train_step import default_benchmark_config


def test_speeds_are_positive_and_the_ratio_is_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vqlab.benchmarks.encode.tune_process", lambda threads: None)
    monkeypatch.setattr("vqlab.benchmarks.encode.BATCH", 16)
    config = replace(default_benchmark_config("sample", "data", 1), conv=ConvConfig(width=8, residual_width=4))
    result = benchmark_encoding(config, images=40, rounds=1)
    assert len(result.images_per_second) == 4
    assert min(result.images_per_second.values()) > 0
    ratio = result.images_per_second["ids, from memory"] / result.images_per_second["encoder alone, from memory"]
    assert result.ids_over_encoder == pytest.approx(ratio)
    assert f"{ratio:.3f}" in result.table()
    assert torch.is_grad_enabled()

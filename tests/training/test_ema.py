"""The moving average of weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from vqlab.data import ImageData
from vqlab.training import train
from vqlab.training.records import reconstruction_arrays


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """What the last checkpoint holds of the tokenizer while it was training."""
    state = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    return {name.removeprefix("tokenizer."): value for name, value in state.items() if name.startswith("tokenizer.")}


@pytest.mark.parametrize("quantizer", ["ddcl", "vqvae"])
def test_training_is_unchanged_and_the_average_is_what_is_saved(quantizer: str, make_config: Any, few_images: ImageData) -> None:
    plain = train(make_config(quantizer=quantizer, name="plain"))
    averaged = train(make_config(quantizer=quantizer, name="averaged", optim={"ema_decay": 0.9}))
    for name, value in weights(plain).items():
        if "norm" not in name:  # its running statistics are taken anew before evaluation, by the weights that are evaluated
            assert torch.equal(weights(averaged)[name], value), name
    saved = load_file(averaged / "tokenizer" / "model.safetensors")
    callbacks = torch.load(averaged / "checkpoints" / "last.ckpt", weights_only=True)["callbacks"]
    (state,) = [value for value in callbacks.values() if isinstance(value, dict) and "average" in value]
    assert state["steps"] == 16
    for name, value in state["average"].items():
        if "norm" not in name:
            assert torch.equal(saved[name], value), name
    assert any(not torch.equal(saved[name], value) for name, value in weights(averaged).items())
    psnr = [pd.read_csv(folder / "metrics.csv")["test/hard/psnr"].iloc[-1] for folder in (plain, averaged)]
    assert psnr[0] != psnr[1]


def test_the_average_by_hand(make_config: Any, few_images: ImageData) -> None:
    history = [train(make_config(name=f"after{steps}"), max_steps=steps) for steps in range(1, 5)]
    states = [weights(folder) for folder in history]
    folder = train(make_config(name="averaged", optim={"ema_decay": 0.3}), max_steps=4)
    callbacks = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["callbacks"]
    (state,) = [value for value in callbacks.values() if isinstance(value, dict) and "average" in value]
    name = "encoder.layers.0.weight"
    average = None
    for n, current in enumerate((s[name].double() for s in states), 1):
        decay = min(0.3, (1 + n) / (10 + n))
        start = average if average is not None else first_weights(make_config)[name].double()
        average = decay * start + (1 - decay) * current
    torch.testing.assert_close(state["average"][name].double(), average, rtol=1e-5, atol=1e-6)


def first_weights(make_config: Any) -> dict[str, torch.Tensor]:
    from vqlab.tokenizer import Tokenizer

    torch.manual_seed(0)
    return Tokenizer(make_config().tokenizer_config()).state_dict()


def test_resuming_goes_on_exactly(make_config: Any, few_images: ImageData, comparable: Any) -> None:
    options: dict[str, Any] = {"optim": {"ema_decay": 0.8}}
    whole = train(make_config(name="whole", **options))
    train(make_config(name="stopped", **options), max_steps=11)
    resumed = train(make_config(name="stopped", **options), resume=True)
    first, second = (comparable(folder / "checkpoints" / "last.ckpt") for folder in (whole, resumed))
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


def test_pictures_show_the_average(make_config: Any, few_images: ImageData, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []

    def arrays(tokenizer: torch.nn.Module, preview: torch.Tensor) -> dict[str, Any]:
        shown.append(tokenizer.state_dict()["encoder.layers.0.weight"].clone())
        return reconstruction_arrays(tokenizer, preview)  # type: ignore[arg-type]

    monkeypatch.setattr("vqlab.training.loggers.reconstruction_arrays", arrays)
    folder = train(make_config(optim={"ema_decay": 0.9}, run={"tensorboard": True}))
    assert len(shown) == 2
    assert torch.equal(load_file(folder / "tokenizer" / "model.safetensors")["encoder.layers.0.weight"], shown[-1])

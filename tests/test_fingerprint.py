"""One hash for what a tokenizer is."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from vqlab import Tokenizer
from vqlab.fingerprint import fingerprint
from vqlab.quantizers import CODEBOOKS

ROOT = Path(__file__).parents[1]
#: Of released tokenizers: tokens that were written with them stay readable.
RELEASED = {
    "cifar10-ddcl-k512": "3e7eb4bea990241e67d0fe821d00da6c133e473c19339346982f9f0abb2cd78d",
    "cifar10-vqvae-k512": "dbcba195de7618ec3330bb0d5a860015fc94729099fdd647bff82c26bc405a4f",
}


@pytest.mark.parametrize("name", list(RELEASED))
def test_fingerprints_of_released_tokenizers_never_change(name: str) -> None:
    assert Tokenizer.from_pretrained(ROOT / "checkpoints" / name).fingerprint == RELEASED[name]


def config(kind: str = "vqvae", **changes: object) -> dict:
    quantizer = {"topology": "residual", "normalize": True, "codebook_dim": 4, "levels": [{"kind": kind, "codebook_size": 8}] * 2}
    encoder = {"name": "conv", "width": 8, "residual_blocks": 1, "residual_width": 4, "downsamplings": 2}
    return {"channels": 3, "latent_dim": 6, "encoder": encoder, "quantizer": {**quantizer, **changes}}


@pytest.mark.parametrize("kind", list(CODEBOOKS))
def test_saving_moving_and_looking_change_nothing(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokenizer = Tokenizer(config(kind)).eval()
    before = tokenizer.fingerprint
    assert len(before) == 64
    tokenizer.encode(torch.rand(2, 3, 8, 8))
    assert Tokenizer.from_pretrained(tokenizer.save_pretrained(tmp_path)).fingerprint == before
    assert tokenizer.to(memory_format=torch.channels_last).fingerprint == before  # type: ignore[call-overload]
    assert copy.deepcopy(tokenizer).train().fingerprint == before


@pytest.mark.parametrize("kind", list(CODEBOOKS))
def test_every_weight_counts(kind: str) -> None:
    tokenizer = Tokenizer(config(kind))
    seen = {tokenizer.fingerprint}
    weights = [p for p in tokenizer.parameters() if p.numel()]
    for parameter in weights:
        with torch.no_grad():
            parameter.view(-1)[-1] += 1e-3
        seen.add(tokenizer.fingerprint)
    assert len(seen) == len(weights) + 1


def test_the_structure_counts_and_settings_of_the_training_do_not() -> None:
    torch.manual_seed(0)
    first = Tokenizer(config())
    cascade = Tokenizer(config(topology="cascade"))
    cascade.load_state_dict(first.state_dict())
    assert cascade.fingerprint != first.fingerprint
    levels = [{"kind": "vqvae", "codebook_size": 8, "commitment_weight": 0.5}] * 2
    other = Tokenizer(config(levels=levels))
    other.load_state_dict(first.state_dict())
    assert other.fingerprint == first.fingerprint


def test_order_counts_not_but_names_types_and_shapes_do() -> None:
    a, b = torch.zeros(2, 3), torch.ones(4)
    base = fingerprint({"x": 1, "y": 2}, {"a": a, "b": b})
    assert fingerprint({"y": 2, "x": 1}, {"b": b, "a": a}) == base
    others = [{"a": a, "c": b}, {"a": a.view(3, 2), "b": b}, {"a": a.to(torch.int32), "b": b}, {"a": a}]
    assert len({base, *(fingerprint({"x": 1, "y": 2}, tensors) for tensors in others)}) == 5

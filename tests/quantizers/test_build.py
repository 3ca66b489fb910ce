"""Settings to quantizers: every mistake is named, none passes in silence."""

import json

import pytest
import torch

from vqlab.errors import VqlabError
from vqlab.quantizers import CODEBOOKS, QUANTIZER_NAMES, TOPOLOGIES, NoQuantizer, build_codebook, build_quantizer

KINDS = pytest.mark.parametrize("kind", list(CODEBOOKS))


def stack(kind: str = "vqvae", **changes: object) -> dict:
    return {
        "topology": "residual",
        "normalize": True,
        "codebook_dim": 4,
        "levels": [{"kind": kind, "codebook_size": 8}],
        **changes,
    }


def test_names() -> None:
    assert set(QUANTIZER_NAMES) == {"ddcl", "vqvae", "none", "bsq", "fsq", "gumbel", "lfq", "rotation", "simvq", "softvq"}
    for kind, cls in ((kind, CODEBOOKS[kind]) for kind in CODEBOOKS):
        assert cls.kind == kind


@KINDS
@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("dim", [4, 6])
def test_settings_make_the_same_stack_again(kind: str, topology: str, dim: int) -> None:
    levels = [{"kind": kind, "codebook_size": k} for k in (16, 8, 8)]
    quantizer = build_quantizer(dim, stack(topology=topology, levels=levels)).train()
    quantizer(torch.randn(3, dim, 4, 5))
    again = build_quantizer(dim, json.loads(json.dumps(quantizer.settings(), allow_nan=False)))
    again.load_state_dict(quantizer.state_dict())
    assert again.settings() == quantizer.settings()
    x = torch.randn(3, dim, 4, 5)
    assert torch.equal(again.eval().encode(x), quantizer.eval().encode(x))
    assert quantizer.codebook_sizes == [16, 8, 8]


def test_no_levels_give_no_quantizer() -> None:
    assert isinstance(build_quantizer(4, stack(levels=[])), NoQuantizer)
    with pytest.raises(VqlabError, match="codebook_dim must be the latents' 6, got 4"):
        build_quantizer(6, stack(levels=[]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "pq", "codebook_size": 8}, "unknown quantizer 'pq': choose from bsq, ddcl"),
        ({"codebook_size": 8}, "needs a kind: choose from bsq, ddcl"),
        ({"kind": "fsq", "codebook_size": 22}, "codebook_size of fsq must be a product of levels from 3 to 8"),
        ({"kind": "lfq", "codebook_size": 12}, "codebook_size of lfq must be a power of two"),
        ({"kind": "bsq", "codebook_size": 1}, "codebook_size of bsq must be a power of two"),
        ({"kind": "ddcl"}, "needs a codebook_size"),
        ({"kind": "ddcl", "codebook_size": 8, "ema_decay": 0.9}, "unknown setting 'ema_decay' of quantizer 'ddcl'"),
        ({"kind": "vqvae", "codebook_size": 8, "tau_start": 0.9}, "unknown setting 'tau_start'"),
        ({"kind": "vqvae", "codebook_size": 8, "dim": 9}, "unknown setting 'dim'"),
        ({"kind": "vqvae", "codebook_size": 0}, "codebook_size must be at least 1"),
        ({"kind": "vqvae", "codebook_size": "many"}, "quantizer 'vqvae'"),
        ({"kind": "ddcl", "codebook_size": 8.5}, "quantizer 'ddcl'"),
        ({"kind": "vqvae", "codebook_size": 8.5}, "quantizer 'vqvae'"),
        ({"kind": "ddcl", "codebook_size": None}, "quantizer 'ddcl'"),
        ({"kind": "ddcl", "codebook_size": 8, "tau_start": -1}, "tau_start"),
        ({"kind": "ddcl", "codebook_size": 8, "tau_start": "hot"}, "quantizer 'ddcl'"),
        (5, "mapping of settings, got 5"),
        ("ddcl", "mapping of settings, got 'ddcl'"),
        (None, "mapping of settings"),
    ],
)
def test_refused_levels(settings: object, message: str) -> None:
    with pytest.raises(VqlabError, match=message):
        build_codebook(settings, 4)
    with pytest.raises(VqlabError, match=message):
        build_quantizer(4, stack(levels=[settings]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depth": 3}, "unknown setting 'depth'"),
        ({"topology": "tree"}, "topology must be one of residual, cascade, got 'tree'"),
        ({"normalize": "false"}, "'normalize' must be true or false"),
        ({"normalize": 0}, "'normalize' must be true or false"),
        ({"codebook_dim": "wide"}, "codebook_dim"),
        ({"codebook_dim": None}, "codebook_dim"),
        ({"codebook_dim": 0}, "dim must be at least 1"),
        ({"levels": 3}, "levels"),
        (
            {
                "topology": "cascade",
                "levels": [{"kind": "ddcl", "codebook_size": 8}, {"kind": "ddcl", "codebook_size": 16}],
            },
            r"must not grow from level to level, got \[8, 16\]",
        ),
    ],
)
def test_refused_stacks(changes: dict, message: str) -> None:
    with pytest.raises(VqlabError, match=message):
        build_quantizer(4, stack(**changes))


@pytest.mark.parametrize("name", ["levels", "codebook_dim"])
def test_missing_keys(name: str) -> None:
    settings = stack()
    del settings[name]
    with pytest.raises(VqlabError, match=name):
        build_quantizer(4, settings)


def test_the_callers_settings_are_not_changed() -> None:
    settings = stack()
    before = json.dumps(settings)
    build_quantizer(4, settings)
    assert json.dumps(settings) == before

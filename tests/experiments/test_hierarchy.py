"""Stacks trained end to end: V at every level and step, whatever is handed on."""

from __future__ import annotations

from pathlib import Path

import pytest

from vqlab.data.text import load_texts
from vqlab.experiments.encoders import load_text_encoder
from vqlab.experiments.features import TokenFeatures, extract
from vqlab.experiments.hierarchy import CARRIES, _identity_error, fit_stack


@pytest.fixture(scope="module")
def features(data_folder: Path, encoder_folder: Path) -> TokenFeatures:
    return extract(load_text_encoder(str(encoder_folder)), load_texts("20news", data_folder).train, max_tokens=12)


@pytest.mark.parametrize("carry", CARRIES)
def test_v_is_never_negative_and_the_decomposition_holds(features: TokenFeatures, carry: str) -> None:
    fit = fit_stack(features, features, (8, 4, 2), carry, classes=4, epochs=2, seed=0)
    assert fit.predictions.shape == (64,)
    assert len(fit.parts) == 3
    for level in fit.parts:
        assert len(level["V"]) == 2
        assert min(level["V"]) >= 0
    assert _identity_error(fit) < 1e-5

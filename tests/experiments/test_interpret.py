"""What is shown for a prototype: its share, its tokens, and quotes with the token marked."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from vqlab.experiments.encoders import TextEncoder
from vqlab.experiments.features import TokenFeatures
from vqlab.experiments.interpret import patches_figure, prototype_tokens, tokens_figure
from vqlab.readout import DDCLReadout

NAMES = ["the", "cat", "sat", "##s", "dog"]


@pytest.fixture
def table() -> pd.DataFrame:
    """Two prototypes at two points: "the" and "sat" lie at the first, all else at the second."""
    readout = DDCLReadout(2, 2, normalize=False, tau_start=0.01)
    ids = torch.tensor([0, 1, 3, 2, 0, 4, 4, 4], dtype=torch.int32)
    first = torch.isin(ids, torch.tensor([0, 2]))
    states = torch.where(first[:, None], torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 0.0]))
    features = TokenFeatures(states.half(), ids, torch.tensor([0, 4, 8]), torch.zeros(2, dtype=torch.int64))
    readout(states[None])
    with torch.no_grad():
        readout.codebook.prototypes.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    tokenizer = SimpleNamespace(convert_ids_to_tokens=lambda ids: [NAMES[i] for i in ids])
    return prototype_tokens(readout, features, TextEncoder("x", torch.nn.Identity(), tokenizer), per_prototype=2, context=1)


def test_shares_tokens_and_quotes(table: pd.DataFrame) -> None:
    assert table["prototype"].tolist() == [1, 0]  # the larger share first
    assert table["share"].tolist() == ["62.5%", "37.5%"]
    assert table["commonest tokens"][0].startswith("dog, ")
    assert table["commonest tokens"][1] == "the, sat"
    # One quote from each of the two sentences, word pieces joined.
    second = table["largest q, in context"][1].split(" / ")
    assert len(second) == 2
    assert all("[the]" in quote or "[sat]" in quote for quote in second)
    assert "the [cat]s" in table["largest q, in context"][0]


def test_pictures(table: pd.DataFrame, tmp_path: Path) -> None:
    figure = tokens_figure(table)
    (axis,) = figure.axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["prototype 1", "prototype 0"]
    assert [round(bar.get_width(), 1) for bar in axis.patches] == [62.5, 37.5]
    figure.savefig(tmp_path / "tokens.png")

    patches = torch.zeros(6, 3, 4, 4)
    patches[2] = 1
    q = torch.tensor([[0.9, 0.1], [0.8, 0.2], [1.0, 0.0], [0.4, 0.6], [0.3, 0.7], [0.9, 0.1]])
    figure = patches_figure(patches, q, per_prototype=3)
    assert len(figure.axes) == 6
    assert figure.axes[0].images[0].get_array().min() == 1  # the patch with the largest q of the prototype with the largest share
    figure.savefig(tmp_path / "patches.png")

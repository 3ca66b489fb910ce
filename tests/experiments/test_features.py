"""Hidden states are those of the encoder, text by text, whatever the batches; the cache gives them back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from vqlab.data.text import TextSplit, load_texts
from vqlab.errors import VqlabError
from vqlab.experiments.classify import mean_vectors
from vqlab.experiments.encoders import TextEncoder, load_text_encoder
from vqlab.experiments.features import cached_features, extract


@pytest.fixture(scope="module")
def encoder(encoder_folder: Path) -> TextEncoder:
    return load_text_encoder(str(encoder_folder))


@pytest.fixture(scope="module")
def split(data_folder: Path) -> TextSplit:
    return load_texts("sst2", data_folder).test


def test_states_and_ids_of_each_text(encoder: TextEncoder, split: TextSplit) -> None:
    found = extract(encoder, split, max_tokens=7, batch_tokens=40)
    assert len(found) == len(split)
    assert found.labels.tolist() == split.labels.tolist()
    assert int(found.lengths.max()) == 7
    for i in range(len(split)):
        alone = encoder.encode([split.texts[i]], 7, bf16=False)
        own = slice(int(found.offsets[i]), int(found.offsets[i + 1]))
        assert torch.equal(found.ids[own].long(), alone.ids[0])
        torch.testing.assert_close(found.states[own].float(), alone.states[0], atol=0.05, rtol=0.05)  # bfloat16


def test_batches_hold_each_sequence_once_and_mark_padding(encoder: TextEncoder, split: TextSplit) -> None:
    found = extract(encoder, split, max_tokens=20)
    for generator in (None, torch.Generator().manual_seed(0)):
        seen = []
        for batch in found.batches(5, generator):
            seen += batch.which.tolist()
            assert batch.mask.sum(1).tolist() == found.lengths[batch.which].tolist()
            assert not batch.tokens[~batch.mask].any()
            torch.testing.assert_close((batch.tokens.sum(1) / batch.mask.sum(1, keepdim=True)), mean_vectors(found)[batch.which])
            assert torch.equal(batch.labels, found.labels[batch.which])
        assert sorted(seen) == list(range(len(split)))
    part = found.subset(torch.tensor([3, 0]))
    torch.testing.assert_close(mean_vectors(part), mean_vectors(found)[[3, 0]])


def test_the_cache_is_used_for_the_same_and_only_the_same(
    encoder: TextEncoder, split: TextSplit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = cached_features(encoder, split, 8, tmp_path, "x")
    monkeypatch.setattr("vqlab.experiments.features.extract", lambda *_: pytest.fail("computed again"))
    again = cached_features(encoder, split, 8, tmp_path, "x")
    assert all(torch.equal(a, b) for a, b in zip(vars(first).values(), vars(again).values(), strict=True))
    monkeypatch.undo()
    cached_features(encoder, split, 9, tmp_path, "x")
    cached_features(encoder, TextSplit(split.texts[1:], split.labels[1:]), 8, tmp_path, "x")
    relabelled = cached_features(encoder, TextSplit(split.texts, 1 - split.labels), 8, tmp_path, "x")
    assert relabelled.labels.tolist() == (1 - split.labels).tolist()
    assert len(list(tmp_path.glob("x-*.safetensors"))) == 3
    for file in tmp_path.glob("x-*.safetensors"):
        file.write_bytes(b"damaged")
    with pytest.raises(VqlabError, match="delete it"):
        cached_features(encoder, split, 8, tmp_path, "x")


def test_encoders_that_cannot_be_had(tmp_path: Path) -> None:
    with pytest.raises(VqlabError, match="cannot load the encoder"):
        load_text_encoder(str(tmp_path))


def test_labels_are_integers(encoder: TextEncoder, split: TextSplit) -> None:
    assert extract(encoder, split, 8).labels.dtype == torch.int64
    assert split.labels.dtype == np.int64

"""Token files as a torch data set: lazily, in worker processes, and what is refused."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from vqlab import Tokenizer, VqlabError
from vqlab.tokens import EncodeOptions, TokenDataset, dataset, encode_images, open_images


@pytest.fixture
def sample(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    encode_images(tokenizer, open_images("sample:test"), tmp_path / "sample", EncodeOptions(shard_size=60))
    return tmp_path / "sample"


def test_items_and_figures(tokenizer: Tokenizer, sample: Path) -> None:
    tokens = TokenDataset(sample)
    assert (len(tokens), tokens.grid, tokens.codebook_sizes) == (200, (8, 8), (16, 300))
    assert tokens.fingerprint == tokenizer.fingerprint
    whole = tokens.tensor()
    assert whole.shape == (200, 8, 8, 2)
    assert whole.dtype == torch.int64
    for i in (0, 59, 60, 199):
        assert torch.equal(tokens[i], whole[i])
        assert tokens[i].dtype == torch.int64
    assert torch.equal(tokens[-1], whole[199])
    for i in (200, -201):
        with pytest.raises(IndexError):
            tokens[i]


def test_the_order_of_levels_and_pixels(tokenizer: Tokenizer, sample: Path) -> None:
    """The file's ids, read without this package's reader, in raster order with the level as the last axis."""
    from safetensors.torch import load_file

    raw = load_file(sample / "shard-00000.safetensors")
    assert raw["ids"].dtype == torch.uint16
    assert torch.equal(raw["ids"].long().view(60, 8, 8, 2), TokenDataset(sample).tensor()[:60])


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_worker_processes(context: str, sample: Path) -> None:
    tokens = TokenDataset(sample, labels=True)
    tokens[0]  # an open shard is not handed over
    loader = DataLoader(tokens, batch_size=64, num_workers=1, multiprocessing_context=context)
    batches = list(loader)
    assert torch.equal(torch.cat([batch.ids for batch in batches]), tokens.tensor())
    assert torch.equal(torch.cat([batch.label for batch in batches]), tokens.labels())


def test_only_what_is_asked_for_is_opened(sample: Path) -> None:
    (sample / "shard-00003.safetensors").unlink()
    tokens = TokenDataset(sample)
    assert tokens[0].shape == (8, 8, 2)
    with pytest.raises(VqlabError, match="shard-00003"):
        tokens[199]


def test_few_shards_stay_open(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "OPEN_SHARDS", 2)
    tokens = TokenDataset(sample)
    whole = tokens.tensor()
    assert len(tokens._open) == 2
    assert torch.equal(tokens[0], whole[0])
    assert list(tokens._open) == [3, 0]
    assert len(pickle.loads(pickle.dumps(tokens))._open) == 0


def test_labels_that_are_not_there(tokenizer: Tokenizer, pictures: Path, tmp_path: Path) -> None:
    encode_images(tokenizer, open_images(str(pictures / "cat")), tmp_path / "out")
    assert TokenDataset(tmp_path / "out").labels() is None
    with pytest.raises(VqlabError, match="no labels"):
        TokenDataset(tmp_path / "out", labels=True)


def test_different_grids_are_no_tensor(tokens: Path) -> None:
    with pytest.raises(VqlabError, match="different grids"):
        TokenDataset(tokens).tensor()


def test_no_tokens(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(VqlabError, match="holds no tokens"):
            TokenDataset(path)


def test_a_flipped_byte_anywhere_is_found_when_verifying(sample: Path) -> None:
    path = sample / "shard-00001.safetensors"
    content = bytearray(path.read_bytes())
    for position in (10, len(content) // 2, len(content) - 1):
        content[position] ^= 1
        path.write_bytes(content)
        with pytest.raises(VqlabError, match=r"shard-00001"):
            TokenDataset(sample, verify=True)[60]
        content[position] ^= 1


def test_shards_of_other_tokens_are_refused(sample: Path, other_tokenizer: Tokenizer, tmp_path: Path) -> None:
    encode_images(other_tokenizer, open_images("sample:test"), tmp_path / "other", EncodeOptions(shard_size=60))
    shutil.copy(tmp_path / "other" / "shard-00000.safetensors", sample)
    with pytest.raises(VqlabError, match="does not belong"):
        TokenDataset(sample)[0]
    shutil.copy(sample / "shard-00001.safetensors", sample / "shard-00002.safetensors")
    with pytest.raises(VqlabError, match="does not belong"):
        TokenDataset(sample)[120]


INDEX_CHANGES = {
    "format": ("x", "not the index"),
    "format_version": (2, "format_version is 2, this vqlab reads 1"),
    "fingerprint": ("abc", "'fingerprint' must be a SHA-256"),
    "codebook_sizes": ([0], "'codebook_sizes'"),
    "classes": ([1], "'classes'"),
    "entries": (199, "'entries'"),
    "images": (199, "'images' is 199"),
    "tokens": (1, "'tokens' is 1"),
    "grid": ([8, -8], "'grid'"),
    "skipped": (-1, "'skipped'"),
    "shard_size": (True, "'shard_size'"),
    "precision": ("fp8", "'precision'"),
    "source": (None, "'source'"),
    "image_size": (0, "'image_size'"),
    "shards": ([], "'shards' has 0 entries"),
    "vqlab_version": (1, "'vqlab_version'"),
}


@pytest.mark.parametrize("field", list(INDEX_CHANGES))
def test_damaged_indices(field: str, sample: Path) -> None:
    path = sample / "index.json"
    content = json.loads(path.read_text())
    content[field], message = INDEX_CHANGES[field]
    path.write_text(json.dumps(content))
    with pytest.raises(VqlabError, match=message) as caught:
        TokenDataset(sample)
    assert "index.json" in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [("file", "../shard-00000.safetensors"), ("file", "/etc/passwd"), ("images", 61), ("bytes", 1.5), ("sha256", ""), ("tokens", -1)],
)
def test_damaged_entries(field: str, value: object, sample: Path) -> None:
    path = sample / "index.json"
    content = json.loads(path.read_text())
    content["shards"][0][field] = value
    path.write_text(json.dumps(content))
    with pytest.raises(VqlabError, match="shard 0"):
        TokenDataset(sample)

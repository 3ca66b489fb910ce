"""Token files of every kind of tokenizer: grids, sequences, pyramids, images of any size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from vqlab import Tokenizer, VqlabError
from vqlab.cli.info import describe
from vqlab.data import load_images, read_image
from vqlab.tokens import EncodeOptions, TokenDataset, TokenShard, decode_tokens, encode_images, open_images


def test_there_and_back(any_tokenizer: Tokenizer, tmp_path: Path) -> None:
    encode_images(any_tokenizer, open_images("sample:test"), tmp_path / "tokens", EncodeOptions(shard_size=150, batch_size=50))
    tokens = TokenDataset(tmp_path / "tokens", verify=True)
    images = load_images("sample").test.plain(torch.arange(200))
    expected = torch.cat([any_tokenizer.encode(part) for part in (*images[:150].split(50), images[150:])])
    assert torch.equal(tokens.tensor(), expected)
    assert tokens.grid == any_tokenizer.token_grid(32, 32)
    assert torch.equal(tokens[7], expected[7])
    decode_tokens(any_tokenizer, tokens, tmp_path / "images", batch_size=200)
    decoded = any_tokenizer.decode_indices(expected[:3]).mul(255)
    for i in range(3):
        assert (read_image(tmp_path / "images" / tokens.name(i)).float() - decoded[i]).abs().max() <= 0.6
    assert describe(tmp_path / "tokens", check=True)["checked"]
    facts = describe(any_tokenizer.save_pretrained(tmp_path / "tokenizer"))
    assert facts["pixels_per_token"] == [any_tokenizer.factor] * 2
    assert facts["sequence"] == any_tokenizer.quantizes_sequences
    json.dumps(facts)


@pytest.mark.parametrize("sides", [(13, 18), (32, 5), (1, 1)])
def test_images_come_back_in_their_own_size(sides: tuple[int, int], any_tokenizer: Tokenizer, tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "in").mkdir()
    for name, size in (("a", sides), ("b", (32, 32)), ("c", sides)):
        pixels = torch.randint(256, (*size, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        Image.fromarray(pixels.numpy()).save(tmp_path / "in" / f"{name}.png")
    encode_images(any_tokenizer, open_images(str(tmp_path / "in")), tmp_path / "tokens")
    decode_tokens(any_tokenizer, TokenDataset(tmp_path / "tokens"), tmp_path / "out")
    for name, size in (("a", sides), ("b", (32, 32)), ("c", sides)):
        image = read_image(tmp_path / "in" / f"{name}.png")
        expected = any_tokenizer.decode_indices(any_tokenizer.encode(image), size).mul(255)
        found = read_image(tmp_path / "out" / f"{name}.png")
        assert found.shape == (3, *size)
        assert (found.float() - expected).abs().max() <= 0.6


def test_shards_without_sizes_still_decode(tokenizer: Tokenizer, tokens: Path, tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    path = tokens / "shard-00000.safetensors"
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    save_file({name: tensor for name, tensor in load_file(path).items() if name != "sizes"}, path, metadata=metadata)
    shard = TokenShard.open(path)
    assert shard.size(0) is None
    index = json.loads((tokens / "index.json").read_text())
    index["shards"][0]["bytes"] = path.stat().st_size
    (tokens / "index.json").write_text(json.dumps(index))
    assert decode_tokens(tokenizer, TokenDataset(tokens), tmp_path / "out").images == 23


def test_sequences_that_are_none(tokens: Path) -> None:
    index = json.loads((tokens / "index.json").read_text())
    (tokens / "index.json").write_text(json.dumps({**index, "sequence": True}))
    with pytest.raises(VqlabError, match="does not belong to this index"):
        TokenDataset(tokens)[0]

"""Token files back to PNG files: the right pixels under the right names, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vqlab import Tokenizer, VqlabError
from vqlab.data import read_image
from vqlab.tokens import EncodeOptions, TokenDataset, decode_tokens, encode_images, open_images
from vqlab.tokens.decode import image_name


def test_images_come_back_under_their_names(tokenizer: Tokenizer, pictures: Path, tokens: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = decode_tokens(tokenizer, TokenDataset(tokens), out, batch_size=3)
    assert report.images == 23
    written = sorted(path.relative_to(out) for path in out.rglob("*") if path.is_file())
    assert written == sorted(path.relative_to(pictures) for path in pictures.rglob("*.png"))
    for name in written:
        expected = tokenizer.decode_indices(tokenizer.encode(read_image(pictures / name))).mul(255)
        assert (read_image(out / name).float() - expected).abs().max() <= 0.501


def test_processes_share_the_shards(tokenizer: Tokenizer, tokens: Path, tmp_path: Path, contents: Callable[[Path], dict]) -> None:
    decode_tokens(tokenizer, TokenDataset(tokens), tmp_path / "one")
    counts = [decode_tokens(tokenizer, TokenDataset(tokens), tmp_path / "two", rank=rank, world_size=2).images for rank in (0, 1)]
    assert counts == [13, 10]
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


def test_tokens_of_another_tokenizer_are_refused(other_tokenizer: Tokenizer, tokens: Path, tmp_path: Path) -> None:
    with pytest.raises(VqlabError, match="another tokenizer"):
        decode_tokens(other_tokenizer, TokenDataset(tokens), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_existing_files_are_kept_unless_told_otherwise(tokenizer: Tokenizer, tokens: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "cat").mkdir(parents=True)
    (out / "cat" / "07.png").write_bytes(b"mine")
    with pytest.raises(VqlabError, match=r"07\.png is there already"):
        decode_tokens(tokenizer, TokenDataset(tokens), out)
    assert (out / "cat" / "07.png").read_bytes() == b"mine"
    assert decode_tokens(tokenizer, TokenDataset(tokens), out, overwrite=True).images == 23
    assert Image.open(out / "cat" / "07.png").size == (12, 16)
    with pytest.raises(VqlabError, match="is a file"):
        decode_tokens(tokenizer, TokenDataset(tokens), out / "cat" / "07.png")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/etc/passwd",
        "../x.png",
        "a/../../x.png",
        "a//b.png",
        "./a.png",
        "a/",
        "..",
        "C:/x.png",
        "c:x.png",
        "..\\x.png",
        "~/x.png",
        "a\0b",
    ],
)
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(VqlabError, match="leads out"):
        image_name(name)


def test_names_of_other_formats_keep_their_suffix() -> None:
    assert str(image_name("a/b.jpg")) == "a/b.jpg.png"
    assert str(image_name("a/b.PNG")) == "a/b.PNG"


@pytest.mark.parametrize("name", ["../outside.png", "/tmp/vqlab-outside.png"])
def test_a_shard_with_such_a_name_writes_nothing(name: str, tokenizer: Tokenizer, save: Callable[..., np.ndarray], tmp_path: Path) -> None:
    save(tmp_path / "in" / "a.png", 8, 8)
    images = open_images(str(tmp_path / "in"))
    evil = type(images)(**{**images.__dict__, "names": [name]})
    encode_images(tokenizer, evil, tmp_path / "tokens")
    with pytest.raises(VqlabError, match="leads out"):
        decode_tokens(tokenizer, TokenDataset(tmp_path / "tokens"), tmp_path / "out" / "deep")
    assert not list((tmp_path / "out").rglob("*.png"))
    assert not Path("/tmp/vqlab-outside.png").exists()


def test_two_images_of_one_name_are_refused(tokenizer: Tokenizer, save: Callable[..., np.ndarray], tmp_path: Path) -> None:
    for name in ("a.bmp", "a.bmp.png"):
        save(tmp_path / "in" / name, 8, 8)
    encode_images(tokenizer, open_images(str(tmp_path / "in")), tmp_path / "tokens")
    with pytest.raises(VqlabError, match=r"two images .*a\.bmp\.png"):
        decode_tokens(tokenizer, TokenDataset(tmp_path / "tokens"), tmp_path / "out")


def test_a_damaged_shard_writes_none_of_its_images(tokenizer: Tokenizer, tokens: Path, tmp_path: Path) -> None:
    path = tokens / "shard-00000.safetensors"
    dataset = TokenDataset(tokens)
    ids = dataset.shard(0)._ids
    position = path.read_bytes().rindex(ids.view(torch.uint8).flatten().numpy().tobytes())
    content = bytearray(path.read_bytes())
    content[position + 6 : position + 8] = b"\xff\xff"
    path.write_bytes(content)
    with pytest.raises(VqlabError, match=r"shard-00000.*damaged: id 65535 at level 2"):
        decode_tokens(tokenizer, TokenDataset(tokens), tmp_path / "out")
    assert not list((tmp_path / "out").rglob("*.png"))
    with pytest.raises(VqlabError, match=r"SHA-256"):
        decode_tokens(tokenizer, TokenDataset(tokens, verify=True), tmp_path / "out")


def test_wide_and_large_images(tokenizer: Tokenizer, save: Callable[..., np.ndarray], tmp_path: Path) -> None:
    save(tmp_path / "in" / "wide.png", 4, 20_000)
    encode_images(tokenizer, open_images(str(tmp_path / "in")), tmp_path / "tokens", EncodeOptions(batch_size=1))
    decode_tokens(tokenizer, TokenDataset(tmp_path / "tokens"), tmp_path / "out")
    assert Image.open(tmp_path / "out" / "wide.png").size == (20_000, 4)

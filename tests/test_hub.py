"""Tokenizers by name: a folder wins, a hub that is a folder of this machine, and clear errors without one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch

from vqlab import Tokenizer, VqlabError
from vqlab.hub import push_folder


@pytest.fixture
def tokenizer() -> Tokenizer:
    torch.manual_seed(0)
    quantizer = {"topology": "residual", "codebook_dim": 4, "levels": [{"kind": "vqvae", "codebook_size": 8}] * 2}
    encoder = {"name": "conv", "width": 8, "residual_blocks": 0, "residual_width": 4, "downsamplings": 1}
    return Tokenizer({"channels": 3, "latent_dim": 6, "encoder": encoder, "quantizer": quantizer}).eval()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of the hub's servers."""
    pages = tmp_path / "hub"

    class Api:
        def __init__(self, token: str | None = None) -> None:
            pass

        def create_repo(self, repo_id: str, *, private: bool | None, exist_ok: bool) -> str:
            (pages / repo_id).mkdir(parents=True, exist_ok=exist_ok)
            return f"https://hub/{repo_id}"

        def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str) -> None:
            shutil.copytree(folder_path, pages / repo_id, dirs_exist_ok=True)

    def snapshot_download(repo_id: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        assert sorted(allow_patterns) == ["config.json", "model.safetensors"]  # nothing that could be executed
        if not (pages / repo_id).exists():
            raise ConnectionError("404: no such page\nhttps://hub")
        return str(pages / repo_id)

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.chdir(tmp_path)
    return pages


def test_there_and_back(tokenizer: Tokenizer, hub: Path) -> None:
    assert tokenizer.push_to_hub("me/first") == "https://hub/me/first"
    loaded = Tokenizer.from_pretrained("me/first")
    assert loaded.fingerprint == tokenizer.fingerprint
    assert not loaded.training
    card = (hub / "me" / "first" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: vqlab\n")
    assert 'from_pretrained("me/first")' in card


def test_a_folder_that_exists_wins(tokenizer: Tokenizer, hub: Path) -> None:
    tokenizer.push_to_hub("me/first")
    torch.manual_seed(1)
    other = Tokenizer(tokenizer.config())
    other.save_pretrained(Path("me/first"))
    assert Tokenizer.from_pretrained("me/first").fingerprint == other.fingerprint != tokenizer.fingerprint


def test_a_released_folder_goes_up_with_its_card_and_nothing_else(tokenizer: Tokenizer, hub: Path, tmp_path: Path) -> None:
    folder = tokenizer.save_pretrained(tmp_path / "checkpoints" / "good")
    (folder / "README.md").write_text('# good\n\nfrom_pretrained("checkpoints/good") gives 25.1 dB')
    (folder / "evaluation.json").write_text(json.dumps({"hard/psnr": 25.1}))
    (folder / "secret.txt").write_text("mine")
    push_folder(folder, "me/good")
    page = hub / "me" / "good"
    assert sorted(path.name for path in page.iterdir()) == ["README.md", "config.json", "evaluation.json", "model.safetensors"]
    card = (page / "README.md").read_text()
    assert card.startswith("---\n")
    assert 'from_pretrained("me/good") gives 25.1 dB' in card


def test_errors_are_one_line(tokenizer: Tokenizer, hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(VqlabError, match=r"no folder me/none, .* ConnectionError: 404: no such page$"):
        Tokenizer.from_pretrained("me/none")
    for name in ("nowhere", "/me/none", "a/b/c", "../x", str(tmp_path / "x")):
        with pytest.raises(VqlabError, match="is not a tokenizer"):
            Tokenizer.from_pretrained(name)
    for name in ("name", "a/b/c", "", "../x"):
        with pytest.raises(VqlabError, match="USER/NAME"):
            tokenizer.push_to_hub(name)
    with pytest.raises(VqlabError, match=r"has no model\.safetensors"):
        push_folder(tmp_path, "me/x")

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError("we couldn't connect\nto the server")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", refuse)
    with pytest.raises(VqlabError, match=r"as me/x: OSError: we couldn't connect$"):
        tokenizer.push_to_hub("me/x")


@pytest.mark.parametrize("topology", ["residual", "cascade"])
@pytest.mark.parametrize("codebook_dim", [4, 6])
def test_code_tables_add_up_to_the_embedding(topology: str, codebook_dim: int) -> None:
    torch.manual_seed(0)
    quantizer = {"topology": topology, "codebook_dim": codebook_dim, "levels": [{"kind": "vqvae", "codebook_size": 8}] * 3}
    encoder = {"name": "conv", "width": 8, "residual_blocks": 0, "residual_width": 4, "downsamplings": 1}
    tokenizer = Tokenizer({"channels": 3, "latent_dim": 6, "encoder": encoder, "quantizer": quantizer}).eval()
    tables = [tokenizer.codebook(level) for level in range(3)]
    assert [tuple(table.shape) for table in tables] == [(8, 6)] * 3
    assert not any(table.requires_grad for table in tables)
    ids = torch.randint(0, 8, (2, 4, 5, 3))
    for levels in (1, 2, 3):
        vectors = [table[ids[..., level]] for level, table in enumerate(tables[:levels])]
        expected = torch.stack(vectors).sum(0) if topology == "residual" else vectors[-1]
        torch.testing.assert_close(tokenizer.embed(ids[..., :levels]), expected.movedim(-1, 1))
    for level in (-1, 3):
        with pytest.raises(ValueError, match=r"0\.\.2"):
            tokenizer.codebook(level)

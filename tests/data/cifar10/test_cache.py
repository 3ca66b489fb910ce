"""Our own copy on disk: replaced in one step, whoever writes."""

import multiprocessing
from pathlib import Path

import numpy as np
import pytest

from vqlab.data.cifar10 import cache as cache_module
from vqlab.data.cifar10.arrays import Cifar10Arrays, SourceError
from vqlab.data.cifar10.cache import read_cache, write_cache


def constant(value: int) -> Cifar10Arrays:
    return Cifar10Arrays(
        np.full((50, 32, 32, 3), value, np.uint8),
        np.full(50, value, np.uint8),
        np.full((10, 32, 32, 3), value, np.uint8),
        np.full(10, value, np.uint8),
    )


def write_often(root: Path, value: int) -> None:
    for _ in range(20):
        write_cache(root, constant(value))


def test_round_trip(tmp_path: Path) -> None:
    written = constant(3)._replace(train_labels=np.arange(50, dtype=np.uint8))
    write_cache(tmp_path, written)
    for array, again in zip(written, read_cache(tmp_path), strict=True):
        assert again.dtype == np.uint8
        assert np.array_equal(array, again)


def test_missing_copy(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="not there"):
        read_cache(tmp_path)


def test_two_processes_write_at_once_while_one_reads(tmp_path: Path) -> None:
    write_cache(tmp_path, constant(1))
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_often, args=(tmp_path, value)) for value in (1, 2)]
    for writer in writers:
        writer.start()
    reads = 0
    while reads < 5 or any(writer.is_alive() for writer in writers):
        values = {int(value) for array in read_cache(tmp_path) for value in np.unique(array)}
        assert values in ({1}, {2})
        reads += 1
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert len(list((tmp_path / "cifar10").iterdir())) == 1


def test_a_write_that_fails_leaves_the_old_copy_and_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_cache(tmp_path, constant(1))
    before = path.read_bytes()

    def fail(arrays: dict, temporary: Path) -> None:
        Path(temporary).write_bytes(b"half of it")
        raise OSError("No space left on device")

    monkeypatch.setattr(cache_module, "save_file", fail)
    with pytest.raises(OSError, match="No space"):
        write_cache(tmp_path, constant(2))
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]

"""A made-up CIFAR-10 of a few images, in each of the forms it may come in."""

import hashlib
import io
import json
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import CIFAR10

from vqlab.data.cifar10 import arrays as arrays_module
from vqlab.data.cifar10 import download as download_module
from vqlab.data.cifar10 import npm_source
from vqlab.data.cifar10.arrays import CLASSES, Cifar10Arrays

TRAIN, TEST = 20, 6  # five training files of four images


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test may reach the network: the two ways out fail unless a test puts something in their place."""

    def refuse(url: str, timeout: float) -> None:
        raise OSError("no network in tests")

    monkeypatch.setattr(download_module.urllib.request, "urlopen", refuse)
    monkeypatch.setattr(npm_source.shutil, "which", lambda name: None)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Cifar10Arrays:
    """Noise images; the expected sums are set to theirs."""
    generator = np.random.default_rng(0)
    made = Cifar10Arrays(
        generator.integers(0, 256, (TRAIN, 32, 32, 3), np.uint8),
        generator.integers(0, 10, TRAIN, np.uint8),
        generator.integers(0, 256, (TEST, 32, 32, 3), np.uint8),
        generator.integers(0, 10, TEST, np.uint8),
    )
    sums = {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in made._asdict().items()}
    monkeypatch.setattr(arrays_module, "SUMS", sums)
    return made


@pytest.fixture
def write_torchvision(fake: Cifar10Arrays, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Writes the folder cifar-10-batches-py; torchvision's own sums are set to fit."""

    def write(root: Path) -> None:
        folder = root / CIFAR10.base_folder
        folder.mkdir(parents=True)

        def dump(name: str, content: dict) -> str:
            raw = pickle.dumps(content)
            (folder / name).write_bytes(raw)
            return hashlib.md5(raw).hexdigest()

        def batch(images: np.ndarray, labels: np.ndarray) -> dict:
            return {"data": images.transpose(0, 3, 1, 2).reshape(-1, 3072), "labels": labels.tolist()}

        parts = zip(np.split(fake.train_images, 5), np.split(fake.train_labels, 5), strict=True)
        train = [[f"data_batch_{i}", dump(f"data_batch_{i}", batch(*part))] for i, part in enumerate(parts, 1)]
        test = [["test_batch", dump("test_batch", batch(fake.test_images, fake.test_labels))]]
        meta = dump("batches.meta", {"label_names": list(CLASSES)})
        monkeypatch.setattr(CIFAR10, "train_list", train)
        monkeypatch.setattr(CIFAR10, "test_list", test)
        monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": meta})

    return write


@pytest.fixture
def torchvision_archive(
    write_torchvision: Callable[[Path], None],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> bytes:
    """The bytes of cifar-10-python.tar.gz."""
    folder = tmp_path_factory.mktemp("archive")
    write_torchvision(folder)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add(folder / CIFAR10.base_folder, CIFAR10.base_folder)
    monkeypatch.setattr(CIFAR10, "tgz_md5", hashlib.md5(packed.getvalue()).hexdigest())
    return packed.getvalue()


@pytest.fixture
def npm_files(fake: Cifar10Arrays) -> dict[str, bytes]:
    """The files of the npm package that matter, by name."""

    def png(images: np.ndarray) -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(images.reshape(len(images), 1024, 3)).save(buffer, "PNG")
        return buffer.getvalue()

    files = {name: png(part) for name, part in zip(npm_source.TRAIN_FILES, np.split(fake.train_images, 5), strict=True)}
    files[npm_source.TEST_FILES[0]] = png(fake.test_images)
    files[npm_source.TRAIN_LABELS] = json.dumps(fake.train_labels.tolist()).encode()
    files[npm_source.TEST_LABELS] = json.dumps(fake.test_labels.tolist()).encode()
    return files


@pytest.fixture
def npm_archive(npm_files: dict[str, bytes]) -> bytes:
    """The bytes of the npm package."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in {"README.md": b"a data set", **npm_files}.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()

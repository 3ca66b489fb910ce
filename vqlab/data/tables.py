"""Where the experiments' tables lie: a file or folder that the user names, or the environment variable VQLAB_DATA."""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from vqlab.errors import VqlabError

#: Environment variable that names a folder (or file) of data, used where no `--data` is given.
DATA_VARIABLE = "VQLAB_DATA"


def find_file(data: str | Path | None, names: tuple[str, ...]) -> Path | None:
    """The file to read: `data` itself, or the first of `names` in it if it is a folder; None where nothing is named.

    data: a file or a folder; None takes the environment variable VQLAB_DATA, which may be unset.
    Raises VqlabError for a path that does not exist, or a folder that holds none of the names.
    """
    given = data or os.environ.get(DATA_VARIABLE)
    if not given:
        return None
    path = Path(given).expanduser()
    if path.is_file():
        return path
    if not path.is_dir():
        raise VqlabError(f"{path}: no such file or folder")
    for name in names:
        if (path / name).is_file():
            return path / name
    raise VqlabError(f"{path} holds none of {', '.join(names)}")


def open_text(path: Path) -> TextIO:
    """Open a text file in UTF-8, unpacking `.xz` and `.gz` by their ending."""
    if path.suffix == ".xz":
        return lzma.open(path, "rt", encoding="utf-8", newline="")
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return open(path, encoding="utf-8", newline="")


def read_rows(path: Path, required: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Rows of a JSON-lines (`.jsonl`), tab-separated (`.tsv`, without quoting) or comma-separated (`.csv`) file, packed or not.

    Raises VqlabError that names the file for an unknown ending, damaged content or a missing one of the `required` columns.
    """
    kind = next((suffix for suffix in (".jsonl", ".tsv", ".csv") if suffix in path.suffixes), None)
    if kind is None:
        raise VqlabError(f"{path}: expected a .jsonl, .tsv or .csv file, packed as .xz or .gz or not")
    try:
        with open_text(path) as file:
            if kind == ".jsonl":
                rows: Iterator[dict[str, Any]] = (json.loads(line) for line in file if line.strip())
            elif kind == ".tsv":
                rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            else:
                rows = csv.DictReader(file)
            for number, row in enumerate(rows, 1):
                missing = [name for name in required if row.get(name) is None]
                if missing:
                    raise VqlabError(f"{path}: row {number} has no {', '.join(missing)}")
                yield row
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError, csv.Error, json.JSONDecodeError) as error:
        raise VqlabError(f"cannot read {path}: {error}") from error

"""Texts with labels: SST-2, IMDB and 20 Newsgroups, from a file or from their public source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vqlab.data.tables import DATA_VARIABLE, find_file, read_rows
from vqlab.errors import VqlabError

#: Seconds after which a public source that does not answer is given up.
TIMEOUT = 5.0


@dataclass(frozen=True)
class TextSplit:
    """Texts and their labels, int64 in 0..classes-1."""

    texts: list[str]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.texts)

    def subset(self, size: int | None, seed: int = 0) -> TextSplit:
        """`size` texts drawn at random, equally many of each class as far as they go; all of them for None or a larger size."""
        if size is None or size >= len(self):
            return self
        generator = np.random.default_rng(seed)
        order = generator.permutation(len(self))
        rank = np.empty(len(self), dtype=np.int64)  # how many of the same class come before it
        for label in np.unique(self.labels):
            own = order[self.labels[order] == label]
            rank[own] = np.arange(len(own))
        chosen = np.sort(order[np.argsort(rank[order], kind="stable")][:size])
        return TextSplit([self.texts[i] for i in chosen], self.labels[chosen])


@dataclass(frozen=True)
class TextData:
    """A labelled collection. name: as asked for.  source: where it came from, for the report."""

    name: str
    train: TextSplit
    test: TextSplit
    classes: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class _Collection:
    files: tuple[str, ...]
    text_column: str
    classes: tuple[str, ...] | None
    public: Callable[[], TextData]


def load_texts(name: str, data: str | Path | None = None) -> TextData:
    """The collection `name`: "sst2" (sentences), "imdb" or "20news".

    data: a file, or a folder that holds one under its usual name (docs/reproduction.md, "Data"); None takes the environment variable
    VQLAB_DATA, and where that is unset the public source: Hugging Face for "sst2" and "imdb", scikit-learn's download for "20news".
    Raises VqlabError for an unknown name, an unreadable file, or a public source that cannot be reached.
    """
    if name not in TEXT_SETS:
        raise VqlabError(f"unknown text collection {name!r}: choose one of {', '.join(TEXT_SETS)}")
    collection = _COLLECTIONS[name]
    file = find_file(data, collection.files)
    if file is not None:
        return _read(name, file, collection)
    try:
        return collection.public()
    except VqlabError:
        raise
    except Exception as error:  # every library below has its own exceptions for "no network"
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise VqlabError(
            f"{name} could not be had from its public source ({reason}); name a file or folder with --data or {DATA_VARIABLE}"
        ) from error


def _read(name: str, file: Path, collection: _Collection) -> TextData:
    """Rows with the columns split, label and the text; splits "train" and "test" (of GLUE, whose test labels are secret, "dev")."""
    rows = list(read_rows(file, ("split", "label", collection.text_column)))
    splits = {str(row["split"]) for row in rows}
    test_name = "test" if "test" in splits else "dev"
    if not {"train", test_name} <= splits:
        raise VqlabError(f"{file}: expected splits train and test (or dev), found {', '.join(sorted(splits)) or 'no rows'}")
    classes = collection.classes
    if classes is None:
        names = {int(row["label"]): str(row.get("group", row["label"])) for row in rows}
        classes = tuple(names[label] for label in sorted(names))

    def split(wanted: str) -> TextSplit:
        chosen = [row for row in rows if row["split"] == wanted]
        labels = np.array([int(row["label"]) for row in chosen], dtype=np.int64)
        if labels.min() < 0 or labels.max() >= len(classes):
            raise VqlabError(f"{file}: labels must lie in 0..{len(classes) - 1}, found {labels.min()}..{labels.max()}")
        return TextSplit([str(row[collection.text_column]) for row in chosen], labels)

    return TextData(name, split("train"), split(test_name), classes, str(file.name))


def _hugging_face(name: str, repository: str, classes: tuple[str, ...], seeded_subset: int | None = None) -> TextData:
    import datasets
    from huggingface_hub import HfApi

    HfApi().dataset_info(repository, timeout=TIMEOUT)  # fails fast where the library's own retries would take minutes
    loaded = datasets.load_dataset(repository)

    def split(wanted: str) -> TextSplit:
        table = loaded[wanted]
        return TextSplit(list(table["text"]), np.asarray(table["label"], dtype=np.int64)).subset(seeded_subset)

    return TextData(name, split("train"), split("test"), classes, f"huggingface.co/datasets/{repository}")


def _public_20news() -> TextData:
    import socket

    from sklearn.datasets import fetch_20newsgroups

    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)  # scikit-learn's download has no option for it
    try:
        parts = [
            fetch_20newsgroups(subset=subset, remove=("headers", "footers", "quotes"), shuffle=False, n_retries=0)
            for subset in ("train", "test")
        ]
    finally:
        socket.setdefaulttimeout(before)
    train, test = (TextSplit(list(part.data), np.asarray(part.target, dtype=np.int64)) for part in parts)
    return TextData("20news", train, test, tuple(parts[0].target_names), "scikit-learn, without headers, footers and quotes")


_SENTIMENT = ("negative", "positive")
_COLLECTIONS = {
    "sst2": _Collection(
        ("sst2_sentence_level.tsv.xz", "sst2.tsv"), "sentence", _SENTIMENT, lambda: _hugging_face("sst2", "SetFit/sst2", _SENTIMENT)
    ),
    "imdb": _Collection(
        ("aclimdb_10k_subset.jsonl.xz", "imdb.jsonl"),
        "text",
        _SENTIMENT,
        lambda: _hugging_face("imdb", "stanfordnlp/imdb", _SENTIMENT, seeded_subset=5000),
    ),
    "20news": _Collection(("20news_bydate_stripped.jsonl.xz", "20news.jsonl"), "text", None, _public_20news),
}
TEXT_SETS: Sequence[str] = tuple(_COLLECTIONS)

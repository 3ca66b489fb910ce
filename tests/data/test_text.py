"""Texts from files in the documented formats; clear errors; balanced subsets; public sources without a network."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import numpy as np
import pytest

from vqlab.data import text
from vqlab.data.tables import DATA_VARIABLE, read_rows
from vqlab.data.text import TEXT_SETS, TextSplit, load_texts
from vqlab.errors import VqlabError


def write_jsonl(path: Path, rows: list[dict[str, object]]) -> Path:
    with lzma.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def write_tsv(path: Path, rows: list[tuple[str, int, str]]) -> Path:
    path.write_text("\n".join(["split\tlabel\tsentence", *("\t".join(map(str, row)) for row in rows)]) + "\n", encoding="utf-8")
    return path


def test_tab_separated_sentences_are_read_without_quoting(tmp_path: Path) -> None:
    file = write_tsv(tmp_path / "sst2.tsv", [("train", 1, '"odd'), ("train", 0, "plain"), ("dev", 0, "x"), ("test", 1, 'a "b" c')])
    for given in (file, tmp_path):
        data = load_texts("sst2", given)
        assert data.train.texts == ['"odd', "plain"]
        assert data.train.labels.tolist() == [1, 0]
        assert data.test.texts == ['a "b" c']
        assert data.classes == ("negative", "positive")
        assert data.source == "sst2.tsv"


def test_the_dev_split_tests_where_there_is_no_other(tmp_path: Path) -> None:
    assert load_texts("sst2", write_tsv(tmp_path / "x.tsv", [("train", 1, "a"), ("dev", 0, "b")])).test.texts == ["b"]


def test_posts_from_packed_json_lines(tmp_path: Path) -> None:
    rows = [{"split": s, "label": i, "group": f"g{i}", "text": f"t{i}\nü"} for s in ("train", "test") for i in (1, 0)]
    data = load_texts("20news", write_jsonl(tmp_path / "20news_bydate_stripped.jsonl.xz", rows))
    assert data.classes == ("g0", "g1")
    assert data.test.texts == ["t1\nü", "t0\nü"]


def test_the_environment_variable_names_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tsv(tmp_path / "sst2.tsv", [("train", 1, "a"), ("test", 0, "b")])
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert load_texts("sst2").test.texts == ["b"]


def test_errors_name_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(VqlabError, match="no such file or folder"):
        load_texts("sst2", tmp_path / "absent.tsv")
    with pytest.raises(VqlabError, match="holds none of"):
        load_texts("imdb", tmp_path)
    with pytest.raises(VqlabError, match="unknown text collection 'x': choose one of"):
        load_texts("x", tmp_path)
    with pytest.raises(VqlabError, match="expected splits train and test"):
        load_texts("sst2", write_tsv(tmp_path / "one.tsv", [("train", 1, "a")]))
    with pytest.raises(VqlabError, match=r"labels must lie in 0..1, found 0..5"):
        load_texts("sst2", write_tsv(tmp_path / "labels.tsv", [("train", 0, "a"), ("train", 5, "a"), ("test", 1, "b")]))
    with pytest.raises(VqlabError, match="row 1 has no text"):
        load_texts("imdb", write_jsonl(tmp_path / "imdb.jsonl.xz", [{"split": "train", "label": 0}]))
    broken = tmp_path / "broken.jsonl.xz"
    broken.write_bytes(b"no archive")
    with pytest.raises(VqlabError, match=r"cannot read .*broken"):
        load_texts("imdb", broken)
    cut = tmp_path / "cut.csv.gz"
    cut.write_bytes(gzip.compress(b"a,b\n" * 9999)[:-20])
    with pytest.raises(VqlabError, match=r"cannot read .*cut"):
        list(read_rows(cut, ()))
    with pytest.raises(VqlabError, match=r"expected a \.jsonl"):
        list(read_rows(tmp_path / "x.txt", ()))


def test_subsets_are_balanced_and_reproducible() -> None:
    split = TextSplit([str(i) for i in range(100)], np.arange(100) % 10 // 8)  # 80 of class 0, 20 of class 1
    part = split.subset(30, seed=1)
    assert np.bincount(part.labels).tolist() == [15, 15]
    assert part.texts == split.subset(30, seed=1).texts != split.subset(30, seed=2).texts
    assert np.bincount(split.subset(60).labels).tolist() == [40, 20]
    assert split.subset(None) is split
    assert split.subset(1000) is split
    assert [int(t) % 10 // 8 for t in part.texts] == part.labels.tolist()


@pytest.mark.parametrize("name", TEXT_SETS)
def test_a_public_source_that_fails_says_what_to_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise OSError("no network\nat all")

    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    monkeypatch.setitem(text._COLLECTIONS, name, text._Collection((), "text", None, fails))  # type: ignore[arg-type]
    with pytest.raises(VqlabError, match=rf"{name} could not be had .*\(no network\); .* --data or {DATA_VARIABLE}"):
        load_texts(name)

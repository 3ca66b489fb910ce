"""Tiny data sets and a tiny random encoder, in the formats of the real ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

WORDS = [f"w{i}" for i in range(40)]


def _text(generator: np.random.Generator, label: int, classes: int) -> str:
    """Words of which half are typical of the class."""
    own = WORDS[label * len(WORDS) // classes :][: len(WORDS) // classes]
    return " ".join(generator.choice(own if generator.random() < 0.5 else WORDS) for _ in range(generator.integers(3, 9)))


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SST-2, 20 Newsgroups and orbits, a few dozen rows each; no IMDB."""
    folder = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(0)
    rows = [(split, i % 2, _text(generator, i % 2, 2)) for split, n in (("train", 64), ("test", 32)) for i in range(n)]
    (folder / "sst2.tsv").write_text("split\tlabel\tsentence\n" + "".join(f"{s}\t{label}\t{t}\n" for s, label, t in rows), encoding="utf-8")
    with open(folder / "20news.jsonl", "w", encoding="utf-8") as file:
        for split, n in (("train", 64), ("test", 32)):
            for i in range(n):
                row = {"split": split, "label": i % 4, "group": f"group {i % 4}", "text": _text(generator, i % 4, 4)}
                file.write(json.dumps(row) + "\n")
    lines = ["SEMIMAJOR_AXIS,ECCENTRICITY,INCLINATION,PERIOD"]
    for i in range(80):
        a = [7000, 20000, 42164, 26000][i % 4] + 50 * generator.standard_normal()
        lines.append(f"{a},{0.7 if i % 4 == 3 else 0.01},{generator.uniform(0, 98)},{a / 50}")
    (folder / "orbits.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="session")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of one layer and 16 channels with random weights, and a tokenizer that knows WORDS."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("encoder")
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    plain.post_processor = tokenizers.processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.BertModel(config).save_pretrained(folder)
    return folder

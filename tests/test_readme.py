"""What the documentation promises: snippets run, commands parse, links lead somewhere, every column and key is defined."""

from __future__ import annotations

import csv
import json
import re
import shlex
from argparse import ArgumentError
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from vqlab import Tokenizer, VqlabError
from vqlab.backbones import ConvConfig
from vqlab.cli.command import command_parser
from vqlab.cli.main import COMMANDS, build_parser, train_parser
from vqlab.cli.train import config_from_options
from vqlab.config import OptimConfig, RunConfig
from vqlab.quantizers import CODEBOOKS
from vqlab.training import TrainConfig, train

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PRETRAINED = "checkpoints/cifar10-ddcl-k512"
OTHER_PROGRAMS = {"make", "pip", "source", "cd", "git", "npm", "torchrun"}
TARGET = re.compile(r"^([a-z][\w-]*)\s*:(?!=)", re.MULTILINE)
#: `name = ...  # (4, 8, 8, 1)`: a shape that a snippet states.
SHAPE = re.compile(r"^ *(\w+) = .*#\s*\((\d+,(?: \d+,?)*)\)", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line of the page that the text starts at (1-based)."""

    language: str
    text: str
    line: int


def blocks(page: Path, language: str) -> list[Block]:
    fences = re.finditer(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    found = [Block(m[1], m[2], m.string[: m.start(2)].count("\n") + 1) for m in fences]
    return [block for block in found if block.language == language]


def prose(page: Path) -> str:
    """The page without fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def commands() -> list[tuple[str, list[str]]]:
    """Every command line of the ```bash blocks, with a name that tells where it stands."""
    found = []
    for page in PAGES:
        for block in blocks(page, "bash"):
            joined = block.text.replace("\\\n", "  ")
            found += [(f"{name_of(page)}: {line}", shlex.split(line, comments=True)) for line in joined.splitlines()]
    return [(name, words) for name, words in found if words]


@pytest.fixture
def unchanged_process() -> Iterator[None]:
    """Put back what a training sets for its whole process."""
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    yield
    torch.set_rng_state(state)
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unchanged_process: None) -> Path:
    """An empty working directory with a tokenizer of the default sizes, only narrower, where the snippets expect a trained one."""
    config = replace(TrainConfig(), conv=ConvConfig(width=8, residual_width=4))
    Tokenizer(config.tokenizer_config()).save_pretrained(tmp_path / PRETRAINED)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# -- snippets --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name_of)
def test_python_blocks_run_and_shapes_are_as_stated(page: Path, workplace: Path) -> None:
    torch.manual_seed(0)
    namespace: dict[str, Any] = {"__name__": "snippet"}
    for block in blocks(page, "python"):
        source = "\n" * (block.line - 1) + block.text  # so that a traceback names the page's line
        exec(compile(source, str(page), "exec"), namespace)
        for variable, shape in SHAPE.findall(block.text):
            stated = tuple(int(size) for size in shape.split(",") if size.strip())
            assert tuple(namespace[variable].shape) == stated, f"{name_of(page)}: {variable}"


def test_the_readme_has_snippets_for_use_training_and_building_blocks() -> None:
    text = "\n".join(block.text for block in blocks(ROOT / "README.md", "python"))
    for promised in ("from_pretrained(", ".encode(", ".decode_indices(", ".embed(", "train(config)", ".after_step()", ".prepare("):
        assert promised in text
    assert len(SHAPE.findall(text)) >= 5


# -- commands --------------------------------------------------------------------------------------------------------------------


def parse_training(words: list[str]) -> None:
    parser = train_parser("train.py")
    options = parser.parse_args(words)
    if options.resume is None:
        config_from_options(options, parser.get_defaults())


def check_command(words: list[str]) -> None:
    """Parse a command line of vqlab as the program itself does, without running it; raises where it is wrong or unknown."""
    if words[:1] == ["vqlab"]:
        options = build_parser().parse_args(words[1:])
        if options.command == "train":
            parse_training(words[2:])
    elif words[:2] == ["python", "train.py"]:
        if words[2:] != ["--help"]:
            parse_training(words[2:])
    elif words[:1] == ["make"]:
        for word in words[1:]:
            name, equals, value = word.partition("=")
            if name == "ARGS" and "train" in words:
                parse_training(shlex.split(value))
            elif not equals:
                assert name in TARGET.findall((ROOT / "Makefile").read_text()), f"the Makefile has no target {name}"
    elif words[:2] == ["python", "-m"]:
        assert words[2] in {"venv", "pytest"}, f"{words[2]} is not a module that the documentation knows"
    else:
        assert words[0] in OTHER_PROGRAMS, f"{words[0]} is not a program that the documentation knows"
        for word in words:
            assert not word.endswith(".txt") or (ROOT / word).is_file(), f"{word} is missing"


@pytest.mark.parametrize(("name", "words"), commands(), ids=[name for name, _ in commands()])
def test_command_lines_are_accepted(name: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # configuration files are named relative to it
    check_command(words)


@pytest.mark.parametrize(
    "line",
    [
        "vqlab evaluate x --no_such_option 1",
        "vqlab no_such_command",
        "python train.py --no_such_option 1",
        "python train.py --quantizer no_such_quantizer",
        "python train.py --config configs/no_such_file.yaml",
        "vqlab train --quantizer vqvae --ddcl.tau_end 0.1",
        "make no_such_target",
        'make train ARGS="--no_such_option 1"',
        "no_such_program",
    ],
)
def test_wrong_command_lines_are_found(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises((ArgumentError, VqlabError, AssertionError)):
        check_command(shlex.split(line))


def test_the_commands_include_the_two_of_the_start_and_every_subcommand() -> None:
    known = [words for _, words in commands()]
    assert ["make", "train"] in known
    assert ["make", "test"] in known
    assert ["python", "train.py", "--quantizer", "ddcl"] in known
    assert {words[1] for words in known if words[0] == "vqlab"} >= {"train", "evaluate", "plot", "compare", "bench", "release"}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_options_and_targets_in_the_text_exist(page: Path) -> None:
    own = {option for action in train_parser("train.py")._actions for option in action.option_strings}
    sub = {option for command in COMMANDS for action in command_parser(command)._actions for option in action.option_strings}
    groups = {option.split(".")[0] for option in own if "." in option}
    for inline in re.findall(r"`([^`\n]+)`", prose(page)):
        for option in re.findall(r"(?<![\w-])--[a-z][\w.]*\*?", inline):
            exists = option in own | sub or (option.endswith(".*") and option[:-2] in groups) or option == "--random.*"
            assert exists, f"{name_of(page)}: {option}"
        if inline.startswith("make "):
            check_command(shlex.split(inline))


def test_tables_of_options_state_the_defaults() -> None:
    text = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    stated: dict[str, str] = {}
    for names, values in re.findall(r"^\| (`.+?`) \| ([^|]+?) \| ", text, re.MULTILINE):
        keys = re.findall(r"`(\w+)`", names)
        stated |= dict(zip(keys, values.split(", "), strict=True)) if len(keys) == values.count(", ") + 1 else {}
    for kind in CODEBOOKS:
        for name, default in CODEBOOKS[kind](4, 8).settings().items():
            assert stated.get(name) == str(default), f"{kind}.{name}"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"| `--codebook_dim` | dimension of the codes ({TrainConfig().codebook_dim}) |" in readme


# -- links -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_to_files_and_headings(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+://|mailto:", link):
            continue
        file, _, heading = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{name_of(page)}: {link}"
        assert target.is_relative_to(ROOT)
        if heading:
            titles = re.findall(r"^#+ (.+)$", prose(target), re.MULTILINE)
            assert heading in [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles], f"{name_of(page)}: {link}"


def test_source_files_in_the_layout_exist() -> None:
    (layout,) = blocks(ROOT / "README.md", "text")
    names = [line.split()[0] for line in layout.text.splitlines()]
    assert len(names) > 10
    assert [name for name in names if not (ROOT / name).exists()] == []


# -- figures ---------------------------------------------------------------------------------------------------------------------


def documented(section: str) -> set[str]:
    """Names in the first column of the tables below a heading of docs/metrics.md, up to the next heading of any rank."""
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    (body,) = re.findall(rf"^#+ {re.escape(section)}.*?\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\|(.*?)\|", body, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_every_column_and_key_of_a_run_is_defined(tmp_path: Path, unchanged_process: None) -> None:
    tiny = TrainConfig(
        data="sample",
        codebook_size=8,
        epochs=1,
        batch_size=400,
        conv=ConvConfig(width=4, residual_blocks=0),
        optim=OptimConfig(warmup_steps=0),
        run=RunConfig(root=str(tmp_path), progress=False, tensorboard=False, usage_warning=0.0),
    )
    runs = [
        train(replace(tiny, name="stack", levels=2, topology="cascade")),
        train(replace(tiny, name="hard", quantizer="vqvae")),
        train(replace(tiny, name="plain", quantizer="none")),
    ]
    written, keys = set(), set()
    for run in runs:
        with open(run / "metrics.csv", encoding="utf-8", newline="") as file:
            written |= {re.sub(r"(level|prefix)\d", r"\1{l}", column) for column in next(csv.reader(file))}
        keys |= set(json.loads((run / "summary.json").read_text(encoding="utf-8")))
    per_level = {column.rsplit("/", 1)[1] for column in written if "/level{l}/" in column}
    assert written - {column for column in written if "/level{l}/" in column} == documented("metrics.csv")
    assert per_level == documented("Columns per level") - {"train/level{l}/NAME", "test/level{l}/NAME"}
    assert keys == documented("summary.json") - {"level{l}/V", "level{l}/margin"}
    train_only = {name for name in per_level if f"train/level{{l}}/{name}" in written and f"test/level{{l}}/{name}" not in written}
    assert train_only == {"margin", "separation", "separation_nearest"}

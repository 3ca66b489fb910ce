"""What an experiment hands back: tables, pictures, and what it says about each claim; written as Markdown, CSV and JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import pandas as pd

from vqlab.storage import write_atomically, write_json

Verdict = Literal["agrees", "partly", "disagrees", "not tested"]


@dataclass(frozen=True)
class Claim:
    """One claim of the paper. ours: our figure with its interval.  note: why it differs, or under which condition it holds."""

    claim: str
    paper: str
    ours: str
    verdict: Verdict
    note: str = ""


@dataclass(frozen=True)
class Settings:
    """How an experiment is run.

    out: folder for results; the experiment writes into a sub-folder of its name.  quick: small data and few steps.  seeds: number of
    seeds, from 0.  data: file or folder of data sets, None for VQLAB_DATA or the public source.  encoder: see `load_text_encoder`.
    cache: folder for hidden states.  data_root: folder that holds CIFAR-10.
    """

    out: Path = Path("reproduction")
    quick: bool = False
    seeds: int = 3
    data: Path | None = None
    encoder: str = "auto"
    cache: Path = Path("cache")
    data_root: Path = Path("data")


@dataclass
class Report:
    """Results of one experiment; tables and figures in the order they are shown."""

    name: str
    heading: str
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    figures: list[Path] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        """The whole report as Markdown; pictures are linked by file name."""
        lines = [f"# {self.name}: {self.heading}", "", *(f"* {note}" for note in self.notes), ""]
        for title, table in self.tables.items():
            lines += [f"## {title}", "", markdown_table(table), ""]
        if self.claims:
            lines += ["## Claims", "", claims_table(self.claims), ""]
        lines += [f"![{figure.stem}]({figure.name})" for figure in self.figures]
        return "\n".join(lines).rstrip() + "\n"

    def write(self, folder: Path) -> Path:
        """`report.md`, one CSV file per table, `claims.json` into `folder`; the path of the first."""
        folder.mkdir(parents=True, exist_ok=True)
        for title, table in self.tables.items():
            name = "".join(c if c.isalnum() else "-" for c in title.lower()).strip("-")
            write_text(folder / f"{name}.csv", table.to_csv(index=False))
        write_json(folder / "claims.json", [asdict(claim) for claim in self.claims])
        write_text(folder / "report.md", self.markdown())
        return folder / "report.md"


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, whole or not at all."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def markdown_table(table: pd.DataFrame) -> str:
    """A data frame as a Markdown table; cells are shown as they print, floats with four significant digits."""

    def cell(value: object) -> str:
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        return text.replace("|", "\\|").replace("\n", " ")

    rows = [" | ".join(map(cell, row)) for row in table.itertuples(index=False)]
    return "\n".join([f"| {' | '.join(map(str, table.columns))} |", "|" + "---|" * len(table.columns), *(f"| {row} |" for row in rows)])


def claims_table(claims: list[Claim]) -> str:
    """Claims as a Markdown table."""
    rows = [(c.claim, c.paper, c.ours, c.verdict, c.note) for c in claims]
    return markdown_table(pd.DataFrame(rows, columns=["claim", "the paper", "our figure", "verdict", "note"]))

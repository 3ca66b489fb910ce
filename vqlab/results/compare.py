"""Several runs side by side: one figure and one table."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from vqlab.errors import VqlabError
from vqlab.results.comparison_figure import comparison_figure
from vqlab.results.comparison_table import comparison_table, to_csv_table, to_markdown
from vqlab.results.run import Run
from vqlab.results.style import save


class ComparisonPaths(NamedTuple):
    """Files that a comparison wrote."""

    figure: Path
    markdown: Path
    csv: Path


def compare_runs(paths: Sequence[str | Path], out: str | Path) -> ComparisonPaths:
    """Write comparison.png, comparison.md and comparison.csv of the run folders into the folder `out`.

    VqlabError where there is no run to compare or a file of one is missing or broken.
    """
    if not paths:
        raise VqlabError("there is no run to compare: name at least one run folder")
    runs = distinct_names([Run.load(path) for path in paths])
    table = comparison_table(runs)
    folder = Path(out)
    figure = save(comparison_figure(runs), folder / "comparison.png")  # makes the folder
    result = ComparisonPaths(figure, folder / "comparison.md", folder / "comparison.csv")
    result.markdown.write_text(to_markdown(table), encoding="utf-8")
    to_csv_table(table).to_csv(result.csv, index=False)
    return result


def distinct_names(runs: list[Run]) -> dict[str, Run]:
    """Runs by a name of their own: where two share one, their folders tell them apart, else a number does."""
    names = [run.name for run in runs]
    full = [run.name if names.count(run.name) == 1 else f"{run.path.resolve().parent.name}/{run.path.resolve().name}" for run in runs]
    result: dict[str, Run] = {}
    for name, run in zip(full, runs, strict=True):
        number, unique = 1, name
        while unique in result:
            number += 1
            unique = f"{name} ({number})"
        result[unique] = run
    return result

"""The page itself: template, style, script and plotly's library, put into one file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from vqlab.errors import VqlabError
from vqlab.optional import require
from vqlab.results.compare import distinct_names
from vqlab.results.comparison_table import HEADINGS, comparison_table, table_cells
from vqlab.results.report.content import run_content
from vqlab.results.run import Run
from vqlab.storage import write_atomically


def write_report(paths: Sequence[str | Path], out: str | Path, data_root: str | Path = "data", images: int = 1000) -> Path:
    """Write one HTML page about the run folders to `out` and return its path.

    images: at most so many test images, whose tokens fill the codebook atlas. The page holds all it needs, plotly's library included, and
    asks the network for nothing. VqlabError where there is no run, a file of one is missing or broken, its data cannot be had, or plotly or
    Jinja are missing.
    """
    if not paths:
        raise VqlabError("there is no run to report: name at least one run folder")
    library = require("plotly.offline", "downstream", "vqlab report").get_plotlyjs()
    jinja = require("jinja2", "downstream", "vqlab report")
    runs = distinct_names([Run.load(path) for path in paths])
    content = [run_content(name, run, data_root, images) for name, run in runs.items()]
    folder = files("vqlab.results.report")
    template = jinja.Environment(autoescape=True).from_string((folder / "page.html.jinja").read_text(encoding="utf-8"))
    page = template.render(
        headings=list(HEADINGS.values()),
        rows=table_cells(comparison_table(runs)),
        runs=content,
        style=(folder / "page.css").read_text(encoding="utf-8"),
        script=(folder / "page.js").read_text(encoding="utf-8"),
        library=library,
        data=for_script([{key: run[key] for key in run if key not in ("pictures", "stages", "config", "command")} for run in content]),
    )
    path = Path(out)
    if path.is_dir():
        raise VqlabError(f"{path} is a folder: name the file to write, for example {path / 'report.html'}")
    write_atomically(path, lambda temporary: temporary.write_text(page, encoding="utf-8"))
    return path


def for_script(content: object) -> str:
    """JSON that can stand inside a script element: no `<` can end it, whatever a name contains."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")

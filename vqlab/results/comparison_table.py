"""The table of a comparison: one row per run, as CSV for programs and as markdown for readers."""

import math
from typing import Any

import pandas as pd

from vqlab.results.run import Run

HEADINGS = {
    "name": "run",
    "quantizer": "quantizer",
    "codebook_size": "K per level",
    "bits_per_image": "bits/image",
    "parameters": "parameters",
    "epochs": "epochs",
    "psnr_hard": "PSNR hard (dB)",
    "psnr_pooled_hard": "PSNR hard, pooled (dB)",
    "ssim_hard": "SSIM hard",
    "psnr_hard_first": "PSNR hard, epoch 1 (dB)",
    "psnr_prefix": "PSNR hard after each level (dB)",
    "psnr_soft": "PSNR soft (dB)",
    "gap": "gap (dB)",
    "utilization_first": "utilization, epoch 1 (%)",
    "utilization_last": "utilization, last (%)",
    "perplexity_first": "perplexity, epoch 1",
    "perplexity_last": "perplexity, last",
    "v_minimum": "smallest V of all logged steps",
    "margin_minimum": "smallest margin T_c/T of all logged steps",
}
TEXT_COLUMNS = ("name", "quantizer")
ABSENT = "–"


def comparison_table(runs: dict[str, Run]) -> pd.DataFrame:
    """One row per run, unrounded: figures of the test split at the last epoch, NaN where a run has none.

    What is measured per level (`codebook_size`, `utilization_first`, ...) is one tuple, a value per level; utilization is a share
    in [0, 1]. `runs` maps the name to show to the run.
    """
    return pd.DataFrame([_row(name, run) for name, run in runs.items()], columns=list(HEADINGS))


def to_csv_table(table: pd.DataFrame) -> pd.DataFrame:
    """The same with a column per level, `level1/utilization_last` and so on, in place of tuples."""
    levels = max((len(sizes) for sizes in table["codebook_size"]), default=0)
    columns: dict[str, list[Any]] = {}
    for name in table:
        values = table[name].tolist()
        if values and isinstance(values[0], tuple):
            for level in range(levels):
                columns[f"level{level + 1}/{name}"] = [v[level] if level < len(v) else None for v in values]
        else:
            columns[str(name)] = values
    result = pd.DataFrame(columns)
    return result.astype({name: "Int64" for name in result if name.endswith("/codebook_size")})


def to_markdown(table: pd.DataFrame) -> str:
    """A markdown table with figures rounded for reading; levels are separated by slashes, an absent one is a dash."""
    lines = ["| " + " | ".join(HEADINGS.values()) + " |"]
    lines.append("|" + "|".join("---" if name in TEXT_COLUMNS else "---:" for name in HEADINGS) + "|")
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in table_cells(table)]
    return "\n".join(lines) + "\n"


def table_cells(table: pd.DataFrame) -> list[list[str]]:
    """The cells of each row, in the order of HEADINGS, rounded for reading."""
    return [[_cell(name, record[name]) for name in HEADINGS] for record in table.to_dict("records")]


def _row(name: str, run: Run) -> dict[str, Any]:
    last, first, steps = run.summary["test"], run.summary["first_epoch"], run.summary.get("step_minimum", {})
    levels = range(1, run.levels + 1)
    return {
        "name": name,
        "quantizer": run.quantizer,
        "codebook_size": run.codebook_size,
        "bits_per_image": _number(run.summary["bits_per_image"]),
        "parameters": run.summary["parameters"],
        "epochs": run.summary["epochs"],
        "psnr_hard": _number(last.get("test/hard/psnr")),
        "psnr_pooled_hard": _number(last.get("test/hard/psnr_pooled")),
        "ssim_hard": _number(last.get("test/hard/ssim")),
        "psnr_hard_first": _number(first.get("test/hard/psnr")),
        "psnr_prefix": tuple(_number(last.get(f"test/prefix{level}/psnr")) for level in levels if run.levels > 1),
        "psnr_soft": _number(last.get("test/soft/psnr")),
        "gap": _number(last.get("test/gap")),
        "utilization_first": tuple(_number(first.get(f"test/level{level}/utilization")) for level in levels),
        "utilization_last": tuple(_number(last.get(f"test/level{level}/utilization")) for level in levels),
        "perplexity_first": tuple(_number(first.get(f"test/level{level}/perplexity")) for level in levels),
        "perplexity_last": tuple(_number(last.get(f"test/level{level}/perplexity")) for level in levels),
        "v_minimum": tuple(_number(steps.get(f"level{level}/V")) for level in levels),
        "margin_minimum": tuple(_number(steps.get(f"level{level}/margin")) for level in levels),
    }


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _cell(name: str, value: Any) -> str:
    if isinstance(value, tuple):
        return " / ".join(_cell(f"level/{name}", part) for part in value) or ABSENT
    if isinstance(value, float) and math.isnan(value):
        return ABSENT
    kind = name.removeprefix("level/")
    if kind in TEXT_COLUMNS:
        return str(value)
    if kind in ("parameters", "bits_per_image"):
        return f"{value:,.0f}"
    if kind.startswith("utilization"):
        return f"{100 * value:.1f}"
    if kind == "v_minimum":
        return f"{value:.2g}"
    if kind.startswith("ssim"):
        return f"{value:.4f}"
    if kind.startswith("perplexity"):
        return f"{value:.1f}"
    return f"{value:.2f}" if isinstance(value, float) else str(value)

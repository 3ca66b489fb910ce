"""The figure of a comparison: quality, use of the codebook and code counts of several runs, side by side."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from vqlab.results.plots.counts import draw_sorted_counts, finish_counts_axis
from vqlab.results.run import Run
from vqlab.results.style import (
    MARKERS,
    REFERENCE,
    SOFT_STYLE,
    colour,
    draw,
    epoch_axis,
    few_ticks,
    legend_below,
    level_style,
    log_axis,
    panels,
    percent_axis,
    shade,
    styled,
)

MARKED_POINTS = 8  # per line, so that markers tell runs apart without hiding the line


@styled
def comparison_figure(runs: dict[str, Run]) -> Figure:
    """PSNR, utilization and perplexity on the test split over the epochs, and sorted code counts of level 1.

    A quantizer has one colour, in shades and markers for its runs; a level has one line style. A run without
    quantizer shows as the level line of its last PSNR, the ceiling for the others.
    """
    styles = run_styles(runs)
    with_codes = {name: run for name, run in runs.items() if run.levels > 0}
    count = 4 if with_codes else 1
    figure, axes = panels(count)
    _draw_quality(axes[0], runs, styles)
    if with_codes:
        _draw_usage(axes[1], with_codes, styles, "utilization", "Utilization (% of codes)")
        percent_axis(axes[1])
        _draw_usage(axes[2], with_codes, styles, "perplexity", "Perplexity (codes)")
        _scale_perplexity(axes[2], with_codes)
        for name, run in with_codes.items():
            style = styles[name] | {"markevery": _every(len(run.counts[1]), name, runs)}
            draw_sorted_counts(axes[3], run.counts[1], label=name, **style)
        finish_counts_axis(axes[3], max(len(run.counts[1]) for run in with_codes.values()))
        axes[3].set_ylabel("Count, level 1 (tokens)")
    legend_below(figure, _legend(runs, styles), columns=3)
    return figure


def run_styles(runs: dict[str, Run]) -> dict[str, dict[str, Any]]:
    """Colour and marker of each run: the colour of its quantizer, shaded where there are several of one."""
    seen: dict[str, int] = {}
    styles: dict[str, dict[str, Any]] = {}
    for position, (name, run) in enumerate(runs.items()):
        earlier = seen.get(run.quantizer, 0)
        seen[run.quantizer] = earlier + 1
        styles[name] = {
            "color": shade(colour(run.quantizer), earlier),
            "marker": MARKERS[position % len(MARKERS)] if run.levels > 0 else "",
        }
    return styles


def _every(points: int, name: str, runs: dict[str, Run]) -> tuple[int, int]:
    """First and step of the marked points, another first for each run so that equal curves both show."""
    step = max(points // MARKED_POINTS, 1)
    return list(runs).index(name) * step // len(runs), step


def _draw_quality(axis: Axes, runs: dict[str, Run], styles: dict[str, dict[str, Any]]) -> None:
    for name, run in runs.items():
        hard = run.column("test/hard/psnr")
        if run.levels == 0:
            line = axis.axhline(hard[-1], linewidth=1.2, label=name, **styles[name])
            line.set_zorder(1)
            continue
        every = _every(len(run.metrics), name, runs)
        draw(axis, run.epochs, hard, label=f"{name} hard", **styles[name] | {"markevery": every})
        if run.has("test/soft/psnr"):
            soft = styles[name] | {"marker": "", "linestyle": SOFT_STYLE, "linewidth": 1.1}
            if len(run.metrics) == 1:
                soft |= {"marker": styles[name]["marker"], "markerfacecolor": "white"}
            draw(axis, run.epochs, run.column("test/soft/psnr"), label=f"{name} soft", **soft)
    axis.set_ylabel("PSNR (dB)")
    few_ticks(axis)
    epoch_axis(axis, _all_epochs(runs))


def _draw_usage(axis: Axes, runs: dict[str, Run], styles: dict[str, dict[str, Any]], quantity: str, label: str) -> None:
    for name, run in runs.items():
        for level in range(1, run.levels + 1):
            column = f"test/level{level}/{quantity}"
            if run.has(column):
                style = styles[name] | {
                    "linestyle": level_style(level),
                    "markevery": _every(len(run.metrics), name, runs),
                }
                draw(axis, run.epochs, run.column(column), label=f"{name} {column}", **style)
    axis.set_ylabel(label)
    epoch_axis(axis, _all_epochs(runs))


def _scale_perplexity(axis: Axes, runs: dict[str, Run]) -> None:
    sizes = sorted({size for run in runs.values() for size in run.codebook_size})
    for size in sizes:
        axis.axhline(size, color=REFERENCE, linewidth=0.8, zorder=0, label=f"K = {size}")
    if len(sizes) > 1:
        log_axis(axis)
    else:
        axis.set_ylim(0, 1.08 * sizes[0])


def _all_epochs(runs: dict[str, Run]) -> list[int]:
    return [int(epoch) for run in runs.values() for epoch in run.epochs]


def _legend(runs: dict[str, Run], styles: dict[str, dict[str, Any]]) -> list[Line2D]:
    handles = []
    for name, run in runs.items():
        label = name if run.levels > 0 else f"{name} (no quantizer: ceiling)"
        handles.append(Line2D([], [], label=label, **styles[name]))
    if any(run.has("test/soft/psnr") for run in runs.values()):
        handles.append(Line2D([], [], color="black", linestyle=SOFT_STYLE, linewidth=1.1, label="soft (PSNR)"))
    deepest = max(run.levels for run in runs.values())
    if deepest > 1:
        for level in range(1, deepest + 1):
            handles.append(Line2D([], [], color="black", linestyle=level_style(level), label=f"level {level}"))
    if any(run.levels > 0 for run in runs.values()):
        handles.append(Line2D([], [], color=REFERENCE, linewidth=0.8, label="codebook size K"))
    return handles

"""The figures of a sweep: quality over rate, use of the codes over epochs, gap over temperature."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from vqlab.results.style import MARKERS, colour, draw, epoch_axis, few_ticks, legend_below, panels, percent_axis, shade, styled

if TYPE_CHECKING:
    from vqlab.sweep.report import Group

RATE_AXES = ("codebook_size", "levels")


def series_styles(groups: Sequence[Group], ignored: Iterable[str] = RATE_AXES) -> dict[str, dict[str, Any]]:
    """A colour and marker for each series: groups that differ in the ignored axes alone share one. Keys are `series_of`'s."""
    styles: dict[str, dict[str, Any]] = {}
    positions: dict[str, int] = {}
    for group in groups:
        name = series_of(group, ignored)
        if name in styles:
            continue
        quantizer = group.runs[0].quantizer
        position = positions.setdefault(quantizer, 0)
        positions[quantizer] += 1
        styles[name] = {"color": shade(colour(quantizer), position), "marker": MARKERS[len(styles) % len(MARKERS)]}
    return styles


def series_of(group: Group, ignored: Iterable[str] = RATE_AXES) -> str:
    """Name of the line that a group belongs to."""
    rest = {key: value for key, value in group.point.items() if key not in ignored}
    named = [str(value) if key == "quantizer" else f"{key} {value}" for key, value in rest.items()]
    return ", ".join(named) or group.runs[0].quantizer


@styled
def rate_figure(groups: Sequence[Group]) -> Figure | None:
    """Hard PSNR over bits per image, mean and 95 % interval; a line per series. None where nothing has a rate."""
    groups = [group for group in groups if np.isfinite(group.interval("bits_per_image").mean)]
    if not groups:
        return None
    figure, (axis,) = panels(1)
    figure.set_size_inches(5.2, 3.9)
    styles = series_styles(groups)
    for name, style in styles.items():
        members = sorted((g for g in groups if series_of(g) == name), key=lambda g: g.interval("bits_per_image").mean)
        psnr = [g.interval("test/hard/psnr") for g in members]
        bars = [0.0 if np.isnan(p.half) else p.half for p in psnr]
        axis.errorbar([g.interval("bits_per_image").mean for g in members], [p.mean for p in psnr], yerr=bars, capsize=2.5, **style)
    axis.set_xlabel("Rate (bits per image)")
    axis.set_ylabel("PSNR of decoded ids (dB)")
    few_ticks(axis)
    legend_below(figure, [Line2D([], [], label=name, **style) for name, style in styles.items()], columns=3)
    return figure


@styled
def usage_figure(groups: Sequence[Group]) -> Figure | None:
    """Utilization and perplexity of the first level over the epochs, as shares of K, a column of panels per codebook size: mean over
    seeds, shaded from the smallest to the largest. None where nothing has codes."""
    groups = [group for group in groups if group.runs[0].levels]
    if not groups:
        return None
    sizes = sorted({group.runs[0].codebook_size[0] for group in groups})
    figure, axes = panels(2 * len(sizes), columns=len(sizes))
    styles = series_styles(groups, ("codebook_size",))
    for row, (column, name) in enumerate((("utilization", "Utilization"), ("perplexity", "Perplexity"))):
        for position, size in enumerate(sizes):
            axis = axes[row * len(sizes) + position]
            members = [group for group in groups if group.runs[0].codebook_size[0] == size]
            for group in members:
                epochs, table = _over_epochs(group, f"test/level1/{column}")
                table = table if column == "utilization" else table / size
                style = styles[series_of(group, ("codebook_size",))]
                draw(axis, epochs, table.mean(0), **style, markevery=max(1, len(epochs) // 8))
                axis.fill_between(epochs, table.min(0), table.max(0), color=style["color"], alpha=0.15, linewidth=0)
            percent_axis(axis)
            epoch_axis(axis, np.concatenate([group.runs[0].epochs for group in members]))
            axis.set_title(f"K = {size}", fontsize=9)
            axis.set_ylabel(f"{name} (% of codes)")
    legend_below(figure, [Line2D([], [], label=name, **style) for name, style in styles.items()])
    return figure


@styled
def gap_figure(groups: Sequence[Group]) -> Figure | None:
    """Soft minus hard PSNR over the relative temperature, a point per epoch. None where no run has a temperature."""
    groups = [group for group in groups if group.runs[0].has("test/gap") and group.runs[0].has("test/level1/tau")]
    if not groups:
        return None
    figure, (axis,) = panels(1)
    figure.set_size_inches(5.2, 3.9)
    styles = series_styles(groups, ())
    for group in groups:
        _, gap = _over_epochs(group, "test/gap")
        _, tau = _over_epochs(group, "test/level1/tau")
        draw(axis, tau.mean(0), gap.mean(0), **styles[series_of(group, ())])
    axis.axhline(0, color="black", linewidth=0.6)
    axis.set_xscale("log")
    axis.invert_xaxis()
    axis.set_xlabel("Relative temperature τ at the end of each epoch (cooling to the right)")
    axis.set_ylabel("Gap: soft minus hard PSNR (dB)")
    few_ticks(axis)
    legend_below(figure, [Line2D([], [], label=name, **style) for name, style in styles.items()], columns=3)
    return figure


def _over_epochs(group: Group, column: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Epochs that all runs of the group have, and the column's values (runs, epochs)."""
    length = min(len(run.epochs) for run in group.runs)
    return group.runs[0].epochs[:length], np.stack([run.column(column)[:length] for run in group.runs])

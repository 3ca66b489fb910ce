"""How evenly the codes of each level are used: counts over the test split, sorted."""

from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from vqlab.metrics import perplexity_from_counts
from vqlab.results.run import Run
from vqlab.results.style import REFERENCE, colour, draw, legend_below, level_style, log_axis, panels, styled


@styled
def counts_figure(run: Run) -> Figure | None:
    """Count of each code from the most to the least used, per level, against uniform use; None without codes.

    Unused codes have no place on a logarithmic axis: a curve ends at the last code in use, and the legend states
    how many that is.
    """
    if not run.counts:
        return None
    figure, (axis,) = panels(1)
    figure.set_size_inches(5.2, 3.4)
    handles = []
    for level, counts in run.counts.items():
        used = int((counts > 0).sum())
        perplexity = perplexity_from_counts(torch.from_numpy(counts)).item()
        handles.append(
            draw_sorted_counts(
                axis,
                counts,
                color=colour(run.quantizer),
                linestyle=level_style(level),
                label=f"level {level}: {used} of {len(counts)} codes used, perplexity {perplexity:.0f}",
            )
        )
    for size, mean in sorted({(len(counts), float(counts.sum() / len(counts))) for counts in run.counts.values()}):
        uniform = draw(axis, [1, size], [mean, mean], color=REFERENCE, linewidth=0.9, zorder=0, label="uniform use")
    handles.append(uniform)
    finish_counts_axis(axis, max(len(counts) for counts in run.counts.values()))
    legend_below(figure, handles, columns=1)
    return figure


def draw_sorted_counts(axis: Axes, counts: NDArray[np.int64], **style: Any) -> Line2D:
    """Draw counts (K,) in falling order against their rank, NaN for unused codes; returns the line."""
    ordered = np.sort(counts)[::-1].astype(np.float64)
    return draw(axis, np.arange(1, len(counts) + 1), np.where(ordered > 0, ordered, np.nan), **style)


def finish_counts_axis(axis: Axes, codebook_size: int) -> None:
    """Label the axes of sorted code counts."""
    log_axis(axis)
    axis.set_xlim(1 - 0.02 * codebook_size, 1.02 * codebook_size)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axis.set_xlabel("Code, sorted by count")
    axis.set_ylabel("Count (tokens)")

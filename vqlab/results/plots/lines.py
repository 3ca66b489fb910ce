"""One panel of a per-level figure: a line for each level and split, and the legend that explains them."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from vqlab.results.run import Run
from vqlab.results.style import MARKERS, colour, draw, epoch_axis, legend_entry, level_style

BROAD: dict[str, Any] = {"linewidth": 2.8, "alpha": 0.35}  # pale, so that it shows under the test line
THIN: dict[str, Any] = {"linewidth": 1.4}
SPLITS = ("train", "test")


def has_quantity(run: Run, quantity: str) -> bool:
    """Whether any level has this figure in any split."""
    return any(run.has(f"{split}/level{level}/{quantity}") for split in SPLITS for level in levels(run))


def levels(run: Run) -> range:
    """Numbers of the levels of a run, from 1."""
    return range(1, run.levels + 1)


def draw_levels(axis: Axes, run: Run, quantity: str) -> None:
    """Draw every level over the epochs, test thin on top of train broad; each line is labelled with its column.

    A figure that only training has is drawn thin.
    """
    both = any(run.has(f"test/level{level}/{quantity}") for level in levels(run))
    for level in levels(run):
        for split in SPLITS:
            name = f"{split}/level{level}/{quantity}"
            if run.has(name):
                draw(
                    axis,
                    run.epochs,
                    run.column(name),
                    lonely_marker=MARKERS[(level - 1) % len(MARKERS)],
                    color=colour(run.quantizer),
                    linestyle=level_style(level),
                    label=name,
                    **(BROAD if split == "train" and both else THIN),
                )
    epoch_axis(axis, run.epochs)


def legend_handles(run: Run, axes: list[Axes]) -> list[Line2D]:
    """Legend entries for the levels, where there are several, and for the splits, where a panel shows both."""
    lines = {str(line.get_label()): line for axis in reversed(axes) for line in axis.lines}
    handles = []
    if run.levels > 1:
        for level in levels(run):
            shown = [line for label, line in lines.items() if f"/level{level}/" in label]
            thin = [line for line in shown if line.get_alpha() is None]
            handles += [legend_entry(line, f"level {level}") for line in (thin or shown)[:1]]
    if any(line.get_alpha() is not None for line in lines.values()):
        base = colour(run.quantizer)
        handles.append(Line2D([], [], color=base, label="train split", **BROAD))
        handles.append(Line2D([], [], color=base, label="test split", **THIN))
    return handles

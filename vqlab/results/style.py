"""The look all figures share: colours, line styles, axes.

A quantizer has one colour (palette of Okabe and Ito, safe for colour-blind readers), a level one line style,
and dashes are kept for what the soft output decodes to.
"""

import math
from collections.abc import Callable, Iterator
from functools import wraps
from itertools import count
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator, PercentFormatter
from numpy.typing import ArrayLike

COLOURS = {
    "ddcl": "#0072B2",
    "vqvae": "#D55E00",
    "none": "#4D4D4D",
    "fsq": "#009E73",
    "simvq": "#E69F00",
    "rotation": "#CC79A7",
    "lfq": "#56B4E9",
    "bsq": "#7B5EA7",
    "gumbel": "#8C6D1F",
    "softvq": "#000000",
}
OTHER_COLOURS = ("#009E73", "#CC79A7", "#E69F00", "#56B4E9")
LEVEL_STYLES: tuple[Any, ...] = ("-", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (7, 2)))
SOFT_STYLE: Any = (0, (4, 2))
MARKERS = "os^Dv<>P"
REFERENCE = "#8C8C8C"  # lines that are no measurement: uniform use, K, margin 1
PANEL = (3.4, 2.5)  # inches
DPI = 150
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8.5,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.0,
    "legend.frameon": False,
    "figure.facecolor": "white",
}

P = ParamSpec("P")
R = TypeVar("R")


def styled(build: Callable[P, R]) -> Callable[P, R]:
    """Run a function that builds a figure under STYLE, and leave the settings of the caller as they were."""

    @wraps(build)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with matplotlib.rc_context(STYLE):
            return build(*args, **kwargs)

    return wrapped


def colour(quantizer: str) -> str:
    """Colour of a quantizer, always the same for the same name."""
    if quantizer in COLOURS:
        return COLOURS[quantizer]
    return OTHER_COLOURS[sum(quantizer.encode()) % len(OTHER_COLOURS)]


def shade(base: str, position: int) -> tuple[float, float, float]:
    """The colour itself (position 0), then alternately lighter and darker variants of it."""
    target = 1.0 if position % 2 else 0.0
    share = 0.0 if position == 0 else min(0.45 + 0.15 * ((position - 1) // 2), 0.8)
    red, green, blue = (channel + share * (target - channel) for channel in to_rgb(base))
    return red, green, blue


def level_style(level: int) -> Any:
    """Line style of a level, from 1."""
    return LEVEL_STYLES[(level - 1) % len(LEVEL_STYLES)]


@styled
def panels(number: int, columns: int = 2) -> tuple[Figure, list[Axes]]:
    """A figure of `number` equal panels in at most `columns` columns."""
    columns = min(columns, number)
    rows = math.ceil(number / columns)
    figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * rows + 0.4), dpi=DPI, layout="constrained")
    get_layout(figure).set(w_pad=0.08, h_pad=0.08)
    axes = [figure.add_subplot(rows, columns, position + 1) for position in range(number)]
    return figure, axes


def draw(axis: Axes, x: ArrayLike, y: ArrayLike, lonely_marker: str = "o", **style: Any) -> Line2D:
    """A line with gaps at NaN; points that no line would touch get a marker, so that they are seen."""
    values = np.asarray(y, dtype=np.float64)
    finite = np.concatenate(([False], np.isfinite(values), [False]))
    lonely = finite[1:-1] & ~finite[:-2] & ~finite[2:]
    if "marker" not in style:
        style |= {"marker": lonely_marker, "markevery": np.flatnonzero(lonely).tolist()}
    return axis.plot(np.asarray(x), values, **style)[0]


def epoch_axis(axis: Axes, epochs: ArrayLike) -> None:
    """Label the x axis as epochs, with few ticks on whole numbers: the first epoch, then round ones."""
    first, last = int(np.min(epochs)), int(np.max(epochs))
    margin = max(0.03 * (last - first), 0.3)
    axis.set_xlabel("Epoch")
    axis.set_xlim(first - margin, last + margin)
    step = 1 if last - first < 10 else next(s for s in _round_numbers() if (last - first) / s <= 6)
    axis.set_xticks([first, *(e for e in range(step, last + 1, step) if e - first >= step / 2)])


def few_ticks(axis: Axes) -> None:
    """At most six ticks on a linear y axis."""
    axis.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))


def _round_numbers() -> Iterator[int]:
    for power in count():
        yield from (5 * 10**power, 10 * 10**power, 20 * 10**power)


def log_axis(axis: Axes) -> None:
    """Logarithmic y axis with few ticks and plain numbers; call it when all lines are drawn."""
    values = np.concatenate([np.asarray(line.get_ydata(), dtype=np.float64) for line in axis.lines] or [np.ones(1)])
    values = values[np.isfinite(values) & (values > 0)]
    decades = math.log10(values.max() / values.min()) if len(values) else 0.0
    axis.set_yscale("log")
    subs = (1.0, 2.0, 5.0) if decades < 2 else (1.0,)
    if len(values):  # room, so that even a constant has two ticks beside it
        room = 10 ** max(0.05 * decades, (0.7 - decades) / 2)
        axis.set_ylim(values.min() / room, values.max() * room)
    axis.yaxis.set_major_locator(LogLocator(subs=subs, numticks=7))
    axis.yaxis.set_major_formatter(FuncFormatter(_plain_or_power))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.yaxis.set_minor_locator(NullLocator())


def percent_axis(axis: Axes) -> None:
    """Show shares in [0, 1] as percentages from 0 to 100."""
    axis.set_ylim(-0.03, 1.05)
    axis.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axis.yaxis.set_major_formatter(PercentFormatter(xmax=1, symbol=""))


def _plain_or_power(value: float, _: int | None) -> str:
    if 1e-3 <= value < 1e5:
        return f"{value:,.10g}".replace(",", "\N{NARROW NO-BREAK SPACE}")
    exponent = math.floor(math.log10(value) + 1e-9)
    mantissa = value / 10**exponent
    power = f"10^{{{exponent}}}"
    return f"${power}$" if round(mantissa) == 1 else f"${mantissa:.0f}\\times{power}$"


def get_layout(figure: Figure) -> ConstrainedLayoutEngine:
    """The layout engine of a figure made with constrained layout."""
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    return engine


@styled
def legend_below(figure: Figure, handles: list[Line2D], columns: int = 4) -> None:
    """One legend for the whole figure, below the panels where it can cover nothing."""
    entries = [legend_entry(line, str(line.get_label())) for line in handles]
    if entries:
        figure.legend(handles=entries, loc="outside lower center", ncols=min(columns, len(entries)), handlelength=2.6)


def legend_entry(line: Line2D, label: str) -> Line2D:
    """A sample of a line for the legend, with its marker only if the line shows any."""
    entry = Line2D([], [])
    entry.update_from(line)
    entry.set_label(label)
    if line.get_markevery() == []:
        entry.set_marker("")
    entry.set_markevery(None)
    return entry


def save(figure: Figure, file: Path) -> Path:
    """Write a figure as PNG and return its path; makes the folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=DPI)
    return file

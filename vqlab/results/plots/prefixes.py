"""What each level of a stack adds: PSNR of decoding only the first levels."""

from matplotlib.figure import Figure

from vqlab.results.run import Run
from vqlab.results.style import MARKERS, colour, draw, epoch_axis, few_ticks, legend_below, level_style, panels, styled


@styled
def prefixes_figure(run: Run) -> Figure | None:
    """Test PSNR of the ids of the first 1, 2, ... levels, over the epochs and at the last epoch.

    None for a run of fewer than two levels.
    """
    names = [f"test/prefix{level}/psnr" for level in range(1, run.levels + 1)]
    if run.levels < 2 or not any(run.has(name) for name in names):
        return None
    figure, (over_epochs, at_end) = panels(2)
    base = colour(run.quantizer)
    handles = []
    for level, name in enumerate(names, start=1):
        label = "level 1" if level == 1 else f"levels 1–{level}"
        handles.append(
            draw(
                over_epochs,
                run.epochs,
                run.column(name),
                color=base,
                linestyle=level_style(level),
                label=label,
                lonely_marker=MARKERS[(level - 1) % len(MARKERS)],
            )
        )
    epoch_axis(over_epochs, run.epochs)
    over_epochs.set_ylabel("PSNR, hard (dB)")

    final = [float(run.column(name)[-1]) for name in names]
    draw(at_end, range(1, run.levels + 1), final, color=base, marker="o")
    for level in range(1, run.levels):
        gain = final[level] - final[level - 1]
        if gain == gain:  # not NaN
            middle = (final[level] + final[level - 1]) / 2
            at_end.annotate(
                f"{gain:+.2f} dB", (level + 0.5, middle), xytext=(4, -4), textcoords="offset points", va="top",
                fontsize=8,
            )  # fmt: skip
    at_end.set_xticks(range(1, run.levels + 1))
    at_end.set_xlim(0.7, run.levels + 0.5)
    at_end.margins(y=0.15)
    few_ticks(over_epochs)
    few_ticks(at_end)
    at_end.set_xlabel("Levels decoded")
    at_end.set_ylabel(f"PSNR, hard, epoch {run.epochs[-1]} (dB)")
    legend_below(figure, handles)
    return figure

"""Use of the codebook per epoch and level: utilization and the perplexities, of chosen codes and of assignments."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vqlab.results.plots.lines import draw_levels, has_quantity, legend_handles
from vqlab.results.run import Run
from vqlab.results.style import REFERENCE, legend_below, log_axis, panels, percent_axis, styled

PANELS = {
    "utilization": "Utilization (% of codes)",
    "perplexity": "Perplexity (codes)",
    "soft_perplexity": "Soft perplexity (codes)",
    "assignment_perplexity": "Assignment perplexity (codes)",
}


@styled
def usage_figure(run: Run) -> Figure | None:
    """Utilization and perplexity over the epochs, train and test; None for a run without codes.

    Grey lines mark the codebook sizes, the most a perplexity can be.
    """
    quantities = [quantity for quantity in PANELS if has_quantity(run, quantity)]
    if not quantities:
        return None
    figure, axes = panels(len(quantities))
    for axis, quantity in zip(axes, quantities, strict=True):
        draw_levels(axis, run, quantity)
        axis.set_ylabel(PANELS[quantity])
        if quantity == "utilization":
            percent_axis(axis)
        elif quantity == "assignment_perplexity":
            log_axis(axis)  # from K down to 1 as the temperature falls
        else:
            _scale_to_codebook(axis, run)
    legend_below(figure, legend_handles(run, axes), columns=5)
    return figure


def _scale_to_codebook(axis: Axes, run: Run) -> None:
    """Mark each codebook size; codebooks of different size share one logarithmic axis."""
    sizes = sorted(set(run.codebook_size))
    for size in sizes:
        axis.axhline(size, color=REFERENCE, linewidth=0.8, zorder=0, label=f"K = {size}")
        axis.annotate(
            f"K = {size}",
            (1, size),
            xycoords=("axes fraction", "data"),
            xytext=(0, 2),
            textcoords="offset points",
            ha="right",
            color=REFERENCE,
            fontsize=8,
        )
    if len(sizes) > 1:
        log_axis(axis)
    else:
        axis.set_ylim(0, 1.1 * sizes[0])

"""What happens inside each level: spread, distance to the soft centroid, collapse margin and temperature."""

from matplotlib.figure import Figure

from vqlab.results.plots.lines import draw_levels, has_quantity, legend_handles
from vqlab.results.run import Run
from vqlab.results.style import REFERENCE, few_ticks, legend_below, log_axis, panels, styled

PANELS = {
    "V": "Spread $V$ (latent units$^2$)",
    "L_OLS": r"$L_\mathrm{OLS}$ (latent units$^2$)",
    "margin": r"Collapse margin $T_c\,/\,T$",
    "temperature": "Temperature $T$ (latent units$^2$)",
    "distortion": "Distortion (latent units$^2$)",
    "commitment": "Commitment (latent units$^2$ per dimension)",
    "revived": "Codes revived so far",
}
LOGARITHMIC = ("V", "L_OLS", "margin", "temperature", "distortion", "commitment")


@styled
def levels_figure(run: Run) -> Figure | None:
    """Per level over the epochs: V, L_OLS, margin and temperature of soft quantizers, distortion of hard ones.

    A line marks margin 1, below which merged prototypes stay merged. None for a run without levels.
    """
    quantities = [quantity for quantity in PANELS if has_quantity(run, quantity)]
    if not quantities:
        return None
    figure, axes = panels(len(quantities))
    marks = []
    for axis, quantity in zip(axes, quantities, strict=True):
        draw_levels(axis, run, quantity)
        axis.set_ylabel(PANELS[quantity])
        if quantity == "margin":
            limit = axis.axhline(1.0, color=REFERENCE, linewidth=0.9, zorder=0, label="margin 1: collapse below")
            marks.append(limit)
        if quantity in LOGARITHMIC:
            log_axis(axis)
        else:
            axis.set_ylim(bottom=0)
            few_ticks(axis)
    legend_below(figure, legend_handles(run, axes) + marks, columns=3)
    return figure

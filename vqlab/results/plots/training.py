"""How a run learned: loss of the training batches and PSNR of the test images."""

import numpy as np
from matplotlib.figure import Figure

from vqlab.results.run import Run
from vqlab.results.style import SOFT_STYLE, colour, draw, epoch_axis, few_ticks, legend_below, log_axis, panels, styled

LOSSES = {"train/loss": "loss (train)", "train/reconstruction": "reconstruction MSE (train)"}
QUALITY = {"test/hard/psnr": "hard (test)", "test/soft/psnr": "soft (test)"}


@styled
def training_figure(run: Run) -> Figure:
    """Loss and reconstruction error of training, and test PSNR of the hard and the soft output, over the epochs."""
    figure, (loss, quality) = panels(2)
    base = colour(run.quantizer)
    handles = []
    for (name, label), style in zip(LOSSES.items(), ({"color": "black"}, {"color": "#009E73"}), strict=True):
        if run.has(name):
            handles.append(draw(loss, run.epochs, run.column(name), label=label, **style))
    loss.set_ylabel("Training loss")
    if all(np.nanmin(np.asarray(line.get_ydata())) > 0 for line in loss.lines):
        log_axis(loss)
    for (name, label), linestyle in zip(QUALITY.items(), ("-", SOFT_STYLE), strict=True):
        if run.has(name):
            marker = "o" if name == "test/hard/psnr" else "s"
            if run.quantizer == "none":
                label = "reconstruction (test)"
            handles.append(
                draw(
                    quality,
                    run.epochs,
                    run.column(name),
                    color=base,
                    linestyle=linestyle,
                    label=label,
                    lonely_marker=marker,
                )
            )
    few_ticks(quality)
    quality.set_ylabel("PSNR (dB)")
    for axis in (loss, quality):
        epoch_axis(axis, run.epochs)
    legend_below(figure, handles)
    return figure

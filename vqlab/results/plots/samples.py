"""Pictures drawn from a prior, one class a row."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from vqlab.results.plots.reconstructions import GAP, IMAGE
from vqlab.results.style import DPI, styled


@styled
def samples_figure(images: Tensor, names: Sequence[str] = ()) -> Figure:
    """A grid of images, float (rows, columns, 3, h, w) in [0, 1], with the name of each row at its left."""
    rows, columns, _, height, width = images.shape
    gap = max(round(GAP * width), 1)
    picture = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap, 3), 255, dtype=np.uint8)
    pixels = (images.clamp(0, 1) * 255).round().byte().permute(0, 1, 3, 4, 2).cpu().numpy()
    for row in range(rows):
        for column in range(columns):
            top, left = row * (height + gap), column * (width + gap)
            picture[top : top + height, left : left + width] = pixels[row, column]
    inches = IMAGE * picture.shape[1] / width
    size = (inches + (0.9 if names else 0.1), inches * picture.shape[0] / picture.shape[1] + 0.1)
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    axis = figure.add_subplot()
    axis.imshow(picture, interpolation="nearest")
    axis.set_yticks([row * (height + gap) + (height - 1) / 2 for row in range(rows)] if names else [], names)
    axis.set_xticks([])
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    return figure

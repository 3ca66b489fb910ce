"""Pictures: the original, what the soft output decodes to, what the ids decode to, and where the ids fail."""

import matplotlib
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from vqlab.results.run import Run
from vqlab.results.style import DPI, styled

PER_ROW = 8
GAP = 1 / 16  # of an image, between images; three times as much between blocks of rows
IMAGE = 0.78  # inches across one image
MAP = "magma"


@styled
def reconstructions_figure(run: Run) -> Figure:
    """Rows original, soft (where it exists), hard and absolute error of the hard output, 8 images across."""
    images = run.reconstructions
    error = error_map(images["original"], images["hard"])
    scale = Normalize(0, max(float(error.max()), 1e-3))
    kinds: tuple[str, ...] = ("original", "soft", "hard")
    rows = {name: images[name].transpose(0, 2, 3, 1) for name in kinds if name in images}
    if run.quantizer == "none":
        rows["decoded"] = rows.pop("hard")
    colours = matplotlib.colormaps[MAP](scale(error))[..., :3]
    rows["error"] = (255 * colours).round().astype(np.uint8)
    picture, centres = mosaic(list(rows.values()))

    inches = IMAGE * picture.shape[1] / images["original"].shape[3]
    size = (inches + 1.5, inches * picture.shape[0] / picture.shape[1] + 0.1)
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    axis = figure.add_subplot()
    axis.imshow(picture, interpolation="nearest")
    axis.set_yticks(centres, list(rows) * (len(centres) // len(rows)))
    axis.set_xticks([])
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    bar = figure.colorbar(ScalarMappable(scale, MAP), ax=axis, shrink=0.6, aspect=25, pad=0.02)
    bar.locator = MaxNLocator(nbins=4, steps=[1, 2, 5, 10])
    bar.set_label("Absolute error (pixel range 0–1)")
    bar.ax.spines[:].set_visible(False)
    return figure


def error_map(original: NDArray[np.uint8], hard: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Absolute difference of uint8 images (n, 3, h, w) as a share of 255, mean over the colours: (n, h, w)."""
    difference = np.abs(original.astype(np.float64) - hard.astype(np.float64))
    result: NDArray[np.float64] = difference.mean(1) / 255
    return result


def mosaic(rows: list[NDArray[np.uint8]]) -> tuple[NDArray[np.uint8], list[float]]:
    """Put equally many images (n, h, w, 3) of each kind in rows of 8, kinds below each other, on white.

    Returns the picture and the height of the middle of each row, in pixels.
    """
    count, height, width, _ = rows[0].shape
    gap = max(round(GAP * width), 1)
    columns = min(count, PER_ROW)
    blocks = -(-count // PER_ROW)
    block_height = len(rows) * (height + gap) + 2 * gap
    shape = (blocks * block_height - 3 * gap, columns * (width + gap) - gap, 3)
    picture = np.full(shape, 255, dtype=np.uint8)
    for kind, images in enumerate(rows):
        for position, image in enumerate(images):
            block, column = divmod(position, PER_ROW)
            top, left = block * block_height + kind * (height + gap), column * (width + gap)
            picture[top : top + height, left : left + width] = image
    middle = (height - 1) / 2
    centres = [b * block_height + k * (height + gap) + middle for b in range(blocks) for k in range(len(rows))]
    return picture, centres

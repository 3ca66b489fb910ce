"""Draw docs/images/overview.svg: run as `python docs/images/make_overview.py [FILE]` (the suffix chooses the format)."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Polygon

from vqlab.data import load_images

INK, PALE, SOFT, IDS = "#222222", "#f3f4f6", "#d9730d", "#1f5fbf"
SAMPLE_IMAGE = 57  # of the training images in the sample: a horse


def box(ax: Axes, x: float, y: float, w: float, h: float, text: str, *, edge: str = INK, fill: str = "white", size: float = 10) -> None:
    """A rounded box with centred text."""
    ax.add_patch(FancyBboxPatch((x, y), w, h, boxstyle="round,pad=0,rounding_size=0.8", fc=fill, ec=edge, lw=1.3))
    ax.text(x + w / 2, y + h / 2, text, ha="center", va="center", fontsize=size, color=INK, linespacing=1.5)


def path(ax: Axes, points: list[tuple[float, float]], colour: str, dashed: bool = False) -> None:
    """A line through points, with an arrow head at the last."""
    style = (0, (4, 2.5)) if dashed else "solid"
    xs, ys = zip(*points, strict=True)
    ax.plot(xs[:-1], ys[:-1], color=colour, lw=1.8, ls=style, solid_capstyle="butt")
    head = {"arrowstyle": "-|>,head_width=0.28,head_length=0.55", "color": colour, "lw": 1.8, "ls": style, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", xy=points[-1], xytext=points[-2], arrowprops=head)


def draw_level(ax: Axes, x: float, number: int, token: str) -> None:
    """One quantizer level with its soft output above and its id below."""
    p, k, mu = f"p^{{({number})}}", f"k_{number}", rf"\mu_{number}"
    lines = (
        rf"$\bf{{level\ {number}}}$",
        rf"$q=\mathrm{{softmax}}_k(-\|{token}-{p}_k\|^2/T)$",
        rf"${mu}=\Sigma_k\,q_k\,{p}_k$",
        rf"${k}=\mathrm{{argmax}}_k\,q_k$",
    )
    box(ax, x, 18, 21, 17, "")
    for height, line in zip((32.4, 28.4, 24.2, 20.4), lines, strict=True):
        ax.text(x + 10.5, height, line, ha="center", va="center", fontsize=9.5, color=INK)
    path(ax, [(x + 10.5, 35), (x + 10.5, 40)], SOFT)
    ax.text(x + 11.3, 37.2, f"${mu}$", color=SOFT, fontsize=11, va="center")
    path(ax, [(x + 10.5, 18), (x + 10.5, 8)], IDS, dashed=True)
    ax.text(x + 11.3, 14.8, f"${k}$", color=IDS, fontsize=11, va="center")


def draw(ax: Axes) -> None:
    """The whole picture on axes of 0..134 by -7..49."""
    image = load_images("sample").train.images[SAMPLE_IMAGE].permute(1, 2, 0).numpy()
    ax.imshow(image, extent=(1, 14, 20, 33), interpolation="nearest", zorder=2)
    ax.text(7.5, 18.3, "image\n(3, 32, 32)", ha="center", va="top", fontsize=9, color=INK)
    ax.add_patch(Polygon([(17, 16), (17, 37), (27, 32), (27, 21)], closed=True, fc=PALE, ec=INK, lw=1.3))
    ax.text(22, 26.5, "encoder", ha="center", va="center", fontsize=11, color=INK)
    path(ax, [(14, 26.5), (17, 26.5)], INK)

    box(ax, 36, 11, 60, 35, "", fill=PALE)
    ax.text(37.5, 44, "quantizer: levels of a residual stack", ha="left", va="center", fontsize=9.5, color=INK)
    path(ax, [(27, 26.5), (39, 26.5)], INK)
    ax.text(31.3, 27.4, "z", ha="center", va="bottom", fontsize=12, style="italic", color=INK)
    ax.text(31.3, 25.4, "8×8 grid\nof vectors", ha="center", va="top", fontsize=8, color=INK)
    draw_level(ax, 39, 1, "z")
    path(ax, [(60, 26.5), (72, 26.5)], INK)
    ax.text(66, 27.3, r"$r=z-\mu_1$", ha="center", va="bottom", fontsize=10, color=INK)
    draw_level(ax, 72, 2, "r")

    path(ax, [(49.5, 40), (101, 40), (101, 30.5), (106, 30.5)], SOFT)
    ax.text(90, 41.2, r"$\mu_1+\mu_2$", color=SOFT, fontsize=11, ha="center", va="bottom")
    box(ax, 42, 2, 48, 6, r"token ids $(8,\ 8,\ \mathrm{levels})$, integers", edge=IDS, size=10)
    path(ax, [(90, 5), (101, 5), (101, 22.5), (106, 22.5)], IDS, dashed=True)
    ax.text(102, 7.2, r"$p^{(1)}_{k_1}+p^{(2)}_{k_2}$", color=IDS, fontsize=11, ha="left", va="center")

    ax.add_patch(Polygon([(106, 21), (106, 32), (116, 37), (116, 16)], closed=True, fc=PALE, ec=INK, lw=1.3))
    ax.text(111, 26.5, "decoder", ha="center", va="center", fontsize=11, color=INK)
    path(ax, [(116, 26.5), (120, 26.5)], INK)
    box(ax, 120, 20, 13, 13, "recon-\nstruction", size=9)
    ax.text(126.5, 18.3, "(3, 32, 32)", ha="center", va="top", fontsize=9, color=INK)

    ax.plot([1, 6], [-2, -2], color=SOFT, lw=2)
    soft = "soft path: what training decodes for most of a batch; differentiable, no straight-through estimator"
    ax.text(7.5, -2, soft, va="center", fontsize=9, color=INK)
    ax.plot([1, 6], [-5.5, -5.5], color=IDS, lw=2, ls=(0, (4, 2.5)))
    ids = r"id path: what encode and decode_indices do, and the rest of a training batch; here level 2 sees $z-p^{(1)}_{k_1}$, not $r$"
    ax.text(7.5, -5.5, ids, va="center", fontsize=9, color=INK)


def main(target: Path) -> None:
    """Write the picture to `target`."""
    matplotlib.rcParams.update({"font.family": "DejaVu Sans", "mathtext.fontset": "dejavusans", "svg.hashsalt": "overview"})
    figure = plt.figure(figsize=(13.4, 5.7), facecolor="white")
    ax = figure.add_axes((0, 0, 1, 1))
    draw(ax)
    ax.set(xlim=(0, 134), ylim=(-7.5, 48.5), aspect="equal")
    ax.axis("off")
    metadata = {"Date": None} if target.suffix == ".svg" else None
    figure.savefig(target, dpi=110, metadata=metadata)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("overview.svg"))

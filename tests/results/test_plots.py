import io
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image

from vqlab.results import Run, plot_run
from vqlab.results.plots import (
    FIGURES,
    counts_figure,
    levels_figure,
    prefixes_figure,
    reconstructions_figure,
    training_figure,
    usage_figure,
)
from vqlab.results.plots.reconstructions import error_map, mosaic

ONE_LEVEL = ["usage", "levels", "training", "counts", "reconstructions"]


def lines(figure: Figure) -> dict[str, np.ndarray]:
    return {str(line.get_label()): np.asarray(line.get_ydata()) for axis in figure.axes for line in axis.lines}


@pytest.mark.parametrize(
    ("quantizer", "levels", "epochs", "expected"),
    [
        ("ddcl", 1, 10, ONE_LEVEL),
        ("ddcl", 3, 30, [*ONE_LEVEL, "prefixes"]),
        ("vqvae", 1, 10, ONE_LEVEL),
        ("vqvae", 3, 1, [*ONE_LEVEL, "prefixes"]),
        ("none", 0, 10, ["training", "reconstructions"]),
        ("ddcl", 1, 1, ONE_LEVEL),
    ],
)
def test_every_figure_is_written(make_run, quantizer: str, levels: int, epochs: int, expected: list[str]):
    path = make_run(quantizer, levels, epochs, images=3)
    written = plot_run(path)
    assert written == [path / "plots" / f"{name}.png" for name in expected]
    for file in written:
        with Image.open(file) as image:
            assert image.format == "PNG"
            assert min(image.size) > 100
            assert len(image.convert("RGB").getcolors(2**24)) > 10


@pytest.mark.parametrize("levels", [1, 3])
@pytest.mark.parametrize("quantizer", ["ddcl", "vqvae"])
def test_axes_are_labelled_and_epochs_whole(make_run, quantizer: str, levels: int):
    run = Run.load(make_run(quantizer, levels, 13))
    for name, build in FIGURES.items():
        figure = build(run)
        if figure is None:
            assert (name, levels) == ("prefixes", 1)
            continue
        if name == "reconstructions":
            continue
        assert figure.axes
        for axis in figure.axes:
            assert axis.get_xlabel()
            assert axis.get_ylabel()
            assert all(tick == int(tick) for tick in axis.get_xticks())
            if axis.get_xlabel() == "Epoch":
                assert axis.get_xticks().tolist() == [1, 5, 10]


def test_nothing_is_cut_off_or_covered(make_run):
    run = Run.load(make_run("ddcl", 3, sizes=(512, 128, 32)))
    for build in FIGURES.values():
        figure = build(run)
        assert figure is not None
        figure.savefig(io.BytesIO(), format="png")
        width, height = figure.bbox.size
        box = figure.get_tightbbox().transformed(figure.dpi_scale_trans)
        assert box.x0 >= -1
        assert box.y0 >= -1
        assert box.x1 <= width + 1
        assert box.y1 <= height + 1
        for legend in figure.legends:
            below = legend.get_window_extent().y1
            assert all(below <= axis.get_tightbbox().y0 + 1 for axis in figure.axes)


def test_usage_shows_the_numbers_of_the_table(make_run):
    path = make_run("ddcl", 3, sizes=(512, 128, 32))
    table = pd.read_csv(path / "metrics.csv")
    shown = lines(usage_figure(Run.load(path)))
    for quantity in ("utilization", "perplexity", "soft_perplexity", "assignment_perplexity"):
        for split in ("train", "test"):
            for level in (1, 2, 3):
                name = f"{split}/level{level}/{quantity}"
                np.testing.assert_array_equal(shown[name], table[name])
    assert [shown[f"K = {size}"][0] for size in (512, 128, 32)] == [512, 128, 32]


def test_usage_of_a_hard_quantizer_has_no_soft_panels(make_run):
    figure = usage_figure(Run.load(make_run("vqvae")))
    assert [axis.get_ylabel() for axis in figure.axes] == ["Utilization (% of codes)", "Perplexity (codes)"]


def test_levels_show_the_numbers_of_the_table_on_log_axes(make_run):
    path = make_run("ddcl", 3)
    table = pd.read_csv(path / "metrics.csv")
    figure = levels_figure(Run.load(path))
    shown = lines(figure)
    for quantity in ("V", "L_OLS", "margin", "temperature"):
        for level in (1, 2, 3):
            name = f"train/level{level}/{quantity}"
            np.testing.assert_array_equal(shown[name], table[name])
    assert [axis.get_yscale() for axis in figure.axes] == ["log"] * 4
    assert shown["margin 1: collapse below"].tolist() == [1, 1]
    low, high = figure.axes[2].get_ylim()
    assert low < 1 < high


def test_levels_of_a_hard_quantizer(make_run):
    path = make_run("vqvae", 2)
    table = pd.read_csv(path / "metrics.csv")
    shown = lines(levels_figure(Run.load(path)))
    for quantity in ("distortion", "commitment", "revived"):
        np.testing.assert_array_equal(shown[f"train/level2/{quantity}"], table[f"train/level2/{quantity}"])


def test_training_shows_soft_and_hard(make_run):
    path = make_run("ddcl")
    table = pd.read_csv(path / "metrics.csv")
    shown = lines(training_figure(Run.load(path)))
    np.testing.assert_array_equal(shown["loss (train)"], table["train/loss"])
    np.testing.assert_array_equal(shown["reconstruction MSE (train)"], table["train/reconstruction"])
    np.testing.assert_array_equal(shown["hard (test)"], table["test/hard/psnr"])
    np.testing.assert_array_equal(shown["soft (test)"], table["test/soft/psnr"])
    assert set(lines(training_figure(Run.load(make_run("vqvae"))))) == set(shown) - {"soft (test)"}


def test_counts_are_sorted_and_unused_codes_left_out(make_run):
    path = make_run("vqvae", sizes=(4,))
    np.savez(path / "counts.npz", level1=np.array([0, 10, 30, 0]))
    figure = counts_figure(Run.load(path))
    shown = lines(figure)
    # H = log 4 - 3/4 log 3, perplexity 4 / 3**.75 = 1.75
    np.testing.assert_array_equal(shown["level 1: 2 of 4 codes used, perplexity 2"], [30, 10, np.nan, np.nan])
    assert shown["uniform use"].tolist() == [10, 10]
    assert figure.axes[0].get_yscale() == "log"


def test_prefixes_show_the_numbers_of_the_table(make_run):
    path = make_run("ddcl", 3)
    table = pd.read_csv(path / "metrics.csv")
    figure = prefixes_figure(Run.load(path))
    shown = lines(figure)
    for level, label in enumerate(("level 1", "levels 1–2", "levels 1–3"), start=1):
        np.testing.assert_array_equal(shown[label], table[f"test/prefix{level}/psnr"])
    final = [table[f"test/prefix{level}/psnr"].iloc[-1] for level in (1, 2, 3)]
    assert figure.axes[1].lines[0].get_ydata().tolist() == final
    gains = [text.get_text() for text in figure.axes[1].texts]
    assert gains == [f"{final[1] - final[0]:+.2f} dB", f"{final[2] - final[1]:+.2f} dB"]


def test_reconstructions_are_the_pictures_themselves(make_run):
    run = Run.load(make_run("ddcl", images=10))
    figure = reconstructions_figure(run)
    axis = figure.axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["original", "soft", "hard", "error"] * 2
    picture = np.asarray(axis.images[0].get_array())
    gap, block = 2, 4 * 34 + 4
    for kind, name in enumerate(("original", "soft", "hard")):
        for position in range(10):
            top, left = position // 8 * block + kind * (32 + gap), position % 8 * (32 + gap)
            tile = picture[top : top + 32, left : left + 32]
            np.testing.assert_array_equal(tile, run.reconstructions[name][position].transpose(1, 2, 0))


def test_error_map_by_hand():
    original = np.zeros((1, 3, 2, 2), np.uint8)
    hard = original.copy()
    hard[0, :, 0, 1] = (255, 0, 51)
    assert error_map(original, hard) == pytest.approx(np.array([[[0, 0.4], [0, 0]]]))
    assert error_map(hard, original) == pytest.approx(error_map(original, hard))  # no wrap-around of uint8


def test_mosaic_of_images_that_are_not_square():
    rows = [np.full((3, 20, 32, 3), value, np.uint8) for value in (10, 20)]
    picture, centres = mosaic(rows)
    assert picture.shape == (20 + 2 + 20, 3 * 32 + 2 * 2, 3)
    assert [int(picture[round(y), 0, 0]) for y in centres] == [10, 20]


@pytest.mark.parametrize("epochs", [1, 6])
def test_empty_cells_leave_gaps_and_lonely_points_a_marker(make_run, epochs: int):
    names = ("test/hard/psnr", "train/level1/V", "test/level1/V", "test/level1/utilization", "train/loss")
    path = make_run("ddcl", 1, epochs, blank=names)
    assert len(plot_run(path)) == 5
    run = Run.load(path)
    shown = lines(training_figure(run))
    if epochs == 1:
        assert "hard (test)" not in shown
        line = training_figure(run).axes[1].lines[0]
        assert line.get_markevery() == [0]
    else:
        assert np.isnan(shown["hard (test)"]).tolist() == [False, True, False, False, False, False]
        assert training_figure(run).axes[1].lines[0].get_markevery() == [0]


def test_settings_of_the_caller_are_left_alone(make_run):
    before = dict(matplotlib.rcParams)
    plot_run(make_run("ddcl", 2, 3))
    assert dict(matplotlib.rcParams) == before


def test_nothing_opens_a_window():
    for name, module in list(sys.modules.items()):
        if name.startswith("vqlab.results") and getattr(module, "__file__", None):
            assert "pyplot" not in Path(module.__file__).read_text()

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from vqlab.errors import VqlabError
from vqlab.results import Run, compare_runs
from vqlab.results.compare import distinct_names
from vqlab.results.comparison_figure import comparison_figure, run_styles
from vqlab.results.comparison_table import HEADINGS, comparison_table
from vqlab.results.style import colour


def rows(markdown: Path) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in markdown.read_text().splitlines()]


def test_files_and_figures_of_the_table(make_run, tmp_path: Path):
    paths = [make_run("ddcl", 2, 4, sizes=(512, 128)), make_run("vqvae", 1, 4), make_run("none", epochs=4)]
    result = compare_runs(paths, tmp_path / "out" / "deeper")
    assert [file.name for file in result] == ["comparison.png", "comparison.md", "comparison.csv"]
    assert all(file.stat().st_size > 100 for file in result)

    ddcl, vqvae, none = (pd.read_csv(path / "metrics.csv") for path in paths)
    table = pd.read_csv(result.csv).set_index("name")
    assert table.index.tolist() == ["ddcl-2", "vqvae-1", "none-0"]
    for name, metrics in (("ddcl-2", ddcl), ("vqvae-1", vqvae), ("none-0", none)):
        assert table.loc[name, "psnr_hard"] == metrics["test/hard/psnr"].iloc[-1]
        assert table.loc[name, "psnr_pooled_hard"] == metrics["test/hard/psnr_pooled"].iloc[-1]
        assert table.loc[name, "ssim_hard"] == metrics["test/hard/ssim"].iloc[-1]
    assert table.loc["ddcl-2", "psnr_soft"] == ddcl["test/soft/psnr"].iloc[-1]
    assert table.loc["ddcl-2", "gap"] == ddcl["test/gap"].iloc[-1]
    assert math.isnan(table.loc["vqvae-1", "gap"])
    for level in (1, 2):
        column = ddcl[f"test/level{level}/utilization"]
        assert table.loc["ddcl-2", f"level{level}/utilization_first"] == column.iloc[0]
        assert table.loc["ddcl-2", f"level{level}/utilization_last"] == column.iloc[-1]
        assert table.loc["ddcl-2", f"level{level}/perplexity_last"] == ddcl[f"test/level{level}/perplexity"].iloc[-1]
    assert table.loc["ddcl-2", ["level1/codebook_size", "level2/codebook_size"]].tolist() == [512, 128]
    assert table.loc["ddcl-2", "bits_per_image"] == 64 * (9 + 7)
    assert table["parameters"].tolist() == [1_234_567] * 3
    assert table["epochs"].tolist() == [4, 4, 4]

    heading, rule, *cells = rows(result.markdown)
    assert heading == list(HEADINGS.values())
    assert {len(row) for row in (rule, *cells)} == {len(HEADINGS)}
    first = dict(zip(HEADINGS, cells[0], strict=True))
    assert first["codebook_size"] == "512 / 128"
    assert first["bits_per_image"] == "1,024"
    assert first["psnr_hard"] == f"{ddcl['test/hard/psnr'].iloc[-1]:.2f}"
    assert first["utilization_first"] == " / ".join(f"{100 * ddcl[f'test/level{level}/utilization'].iloc[0]:.1f}" for level in (1, 2))
    last = dict(zip(HEADINGS, cells[2], strict=True))
    assert (last["codebook_size"], last["psnr_soft"], last["perplexity_last"]) == ("–", "–", "–")


def test_figure_shows_the_numbers_of_the_runs(make_run):
    runs = distinct_names([Run.load(p) for p in (make_run("ddcl", 2, 4), make_run("vqvae", 1, 6), make_run("none"))])
    figure = comparison_figure(runs)
    assert [axis.get_ylabel() for axis in figure.axes] == [
        "PSNR (dB)",
        "Utilization (% of codes)",
        "Perplexity (codes)",
        "Count, level 1 (tokens)",
    ]
    assert all(axis.get_xlabel() for axis in figure.axes)
    shown = {str(line.get_label()): line for axis in figure.axes for line in axis.lines}
    ddcl, vqvae, none = runs.values()
    for label, values in {
        "ddcl-2 hard": ddcl.metrics["test/hard/psnr"],
        "ddcl-2 soft": ddcl.metrics["test/soft/psnr"],
        "vqvae-1 hard": vqvae.metrics["test/hard/psnr"],
        "ddcl-2 test/level2/utilization": ddcl.metrics["test/level2/utilization"],
        "vqvae-1 test/level1/perplexity": vqvae.metrics["test/level1/perplexity"],
        "vqvae-1": np.sort(vqvae.counts[1])[::-1],
    }.items():
        expected = np.asarray(values, dtype=float)
        np.testing.assert_array_equal(shown[label].get_ydata(), np.where(expected > 0, expected, np.nan))
    assert set(shown["none-0"].get_ydata()) == {none.metrics["test/hard/psnr"].iloc[-1]}
    assert shown["ddcl-2 soft"].get_linestyle() == "--"
    first, second = (shown[f"ddcl-2 test/level{level}/utilization"] for level in (1, 2))
    assert first.get_color() == second.get_color()
    assert first.get_linestyle() != second.get_linestyle()


def test_a_quantizer_keeps_its_colour_and_its_runs_differ(make_run):
    runs = {name: Run.load(make_run(kind, name=name)) for name, kind in (("a", "vqvae"), ("b", "ddcl"), ("c", "vqvae"))}
    styles = run_styles(runs)
    assert styles["a"]["color"] == pytest.approx((0xD5 / 255, 0x5E / 255, 0))
    assert styles["b"]["color"] == pytest.approx((0, 0x72 / 255, 0xB2 / 255))
    assert len({style["color"] for style in styles.values()}) == 3
    assert len({style["marker"] for style in styles.values()}) == 3
    assert colour("fsq") == colour("fsq")


def test_runs_of_the_same_name_are_told_apart(make_run, tmp_path: Path):
    one = make_run("ddcl", name="same", folder="left/run")
    two = make_run("vqvae", name="same", folder="right/run")
    other = make_run("none", name="other")
    names = distinct_names([Run.load(path) for path in (one, two, one, other)])
    assert list(names) == ["left/run", "right/run", "left/run (2)", "other"]
    assert [run.quantizer for run in names.values()] == ["ddcl", "vqvae", "ddcl", "none"]
    result = compare_runs([one, two], tmp_path / "out")
    assert pd.read_csv(result.csv)["name"].tolist() == ["left/run", "right/run"]


@pytest.mark.parametrize("epochs", [1, 25])
def test_one_epoch_and_only_none(make_run, tmp_path: Path, epochs: int):
    ddcl, none = make_run("ddcl", 3, epochs), make_run("none", epochs=epochs)
    assert compare_runs([ddcl, none], tmp_path / "both").figure.stat().st_size > 1000
    assert compare_runs([none], tmp_path / "none").figure.stat().st_size > 1000


def test_missing_cells(make_run):
    path = make_run("ddcl", 1, 1, blank=("test/level1/perplexity", "test/soft/psnr"))
    table = comparison_table({"x": Run.load(path)})
    assert math.isnan(table.loc[0, "psnr_soft"])
    assert math.isnan(table.loc[0, "perplexity_last"][0])
    comparison_figure({"x": Run.load(path)})


def test_nothing_to_compare_and_missing_runs(make_run, tmp_path: Path):
    with pytest.raises(VqlabError, match="no run to compare"):
        compare_runs([], tmp_path)
    with pytest.raises(VqlabError, match="nowhere"):
        compare_runs([make_run(), tmp_path / "nowhere"], tmp_path / "out")
    assert not (tmp_path / "out").exists()

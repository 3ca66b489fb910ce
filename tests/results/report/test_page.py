"""The report as a person sees it: in a browser, from disk, without a network."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from vqlab import VqlabError
from vqlab.cli.main import main
from vqlab.config import OptimConfig, RunConfig, TrainConfig
from vqlab.results.report import write_report
from vqlab.results.report.page import for_script
from vqlab.training import train

pytest.importorskip("plotly", reason="reports need plotly")

TrainGolden = Callable[[str, str], Path]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a two-level stack."""
    return train(
        TrainConfig.from_dict(
            {
                "data": "sample",
                "codebook_size": [16, 8],
                "levels": 2,
                "codebook_dim": 4,
                "epochs": 1,
                "batch_size": 100,
                "name": "stack <b>&",
                "conv": {"width": 8, "residual_blocks": 0},
                "optim": vars(OptimConfig(warmup_steps=0)),
                "run": vars(
                    RunConfig(root=str(tmp_path_factory.mktemp("runs")), progress=False, tensorboard=False, device="cpu", log_every=2)
                ),
            }
        )
    )


@pytest.fixture(scope="module")
def page_file(stack: Path, train_golden: TrainGolden, tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = [train_golden("ddcl", "ddcl"), train_golden("none", "none"), stack]
    return write_report(runs, tmp_path_factory.mktemp("report") / "report.html", images=100)


def embedded(page: Path) -> list[dict[str, Any]]:
    (text,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
    found: list[dict[str, Any]] = json.loads(text)
    return found


def test_data_of_the_page_are_those_of_the_runs(page_file: Path, stack: Path, train_golden: TrainGolden) -> None:
    ddcl, none, two = embedded(page_file)
    table = pd.read_csv(train_golden("ddcl", "ddcl") / "metrics.csv")
    assert ddcl["epochs"]["test/hard/psnr"] == pytest.approx(table["test/hard/psnr"].tolist())
    assert none["levels"] == []
    assert [level["size"] for level in two["levels"]] == [16, 8]
    for level in (*ddcl["levels"], *two["levels"]):
        assert sum(level["counts"]) == 200 * 64
        assert sum(level["seen"]) == 100 * 64
        assert sorted(level["shown"]) == list(range(level["size"]))


def test_nothing_comes_from_elsewhere_and_names_are_escaped(page_file: Path) -> None:
    text = page_file.read_text(encoding="utf-8")
    own = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)  # plotly's library names its home in comments
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!data:|#)""", own)
    assert "stack <b>" not in own
    assert "stack &lt;b&gt;&amp;" in own


def test_json_cannot_leave_its_script_element() -> None:
    text = for_script({"name": "</script><script>alert(1)"})
    assert "<" not in text
    assert json.loads(text) == {"name": "</script><script>alert(1)"}


def test_command(train_golden: TrainGolden, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = train_golden("vqvae", "vqvae"), tmp_path / "page.html"
    capsys.readouterr()
    assert main(["report", str(run), "--out", str(out), "--images", "20"]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    assert out.stat().st_size > 10**6
    for words, message in (
        (["nowhere"], "not a run folder"),
        ([str(run), "--images", "0"], "images"),
        ([str(run), "--out", str(tmp_path)], "folder"),
    ):
        assert main(["report", *words]) == 2
        assert message in capsys.readouterr().err


def test_no_run_is_an_error() -> None:
    with pytest.raises(VqlabError, match="no run"):
        write_report([], "report.html")


# -- in a browser ------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser_page(page_file: Path) -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    executable = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if executable is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1300, "height": 900}, offline=True)
        page.problems = []
        page.on("console", lambda message: page.problems.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.on(
            "request",
            lambda request: page.problems.append(request.url) if not request.url.startswith(("file:", "data:", "blob:")) else None,
        )
        page.goto(page_file.as_uri())
        page.wait_for_selector("body[data-ready=true]", timeout=60_000)
        yield page
        browser.close()


def test_loads_without_errors_and_every_picture_is_seen(browser_page: Any) -> None:
    assert browser_page.problems == []
    assert browser_page.evaluate("[...document.images].every((image) => image.complete && image.naturalWidth > 0)")
    assert browser_page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert browser_page.locator("#chart .scatterlayer .trace").count() >= 3


def test_curves_follow_their_controls(browser_page: Any) -> None:
    browser_page.select_option("#quantity", "train/loss")
    browser_page.select_option("#second", "")
    shown = browser_page.evaluate("document.getElementById('chart').data.map((trace) => trace.name)")
    assert shown == ["ddcl: train/loss", "none: train/loss", "stack <b>&: train/loss"]
    browser_page.check("#log")
    assert browser_page.evaluate("document.getElementById('chart').layout.yaxis.type") == "log"
    browser_page.select_option("#table", "steps")
    assert browser_page.evaluate("document.getElementById('quantity').value") == "loss"
    assert browser_page.evaluate("document.getElementById('chart').data[0].x.length") > 4
    assert browser_page.problems == []


def test_the_atlas_follows_its_controls(browser_page: Any) -> None:
    run = browser_page.locator("#run2")
    assert run.locator(".atlas .tile").count() == 16
    run.locator(".level").select_option("1")
    assert run.locator(".atlas .tile").count() == 8
    run.locator(".order").select_option("id")
    run.locator(".atlas .tile").nth(3).click()
    assert run.locator(".detail").get_attribute("data-code") == "3"
    assert run.locator(".detail .tile").count() == 1 + 6
    run.locator(".code").fill("5")
    run.locator(".code").press("Enter")
    assert run.locator(".detail").get_attribute("data-code") == "5"
    run.locator(".code").fill("8")  # no such code: the choice stays
    run.locator(".code").press("Enter")
    assert run.locator(".detail").get_attribute("data-code") == "5"
    assert browser_page.evaluate("document.querySelector('#run2 .map').data[0].x.length") == 8
    assert browser_page.problems == []


def test_pictures_follow_their_sliders(browser_page: Any) -> None:
    browser_page.locator("#run0 .zoom").fill("128")
    width = browser_page.evaluate("document.querySelector('#run0 .pictures img').getBoundingClientRect().width")
    assert width == pytest.approx(128, abs=1)
    browser_page.locator("#run0 .gain").fill("3")
    assert browser_page.evaluate("getComputedStyle(document.querySelector('#run0 .error img')).filter") == "brightness(3)"

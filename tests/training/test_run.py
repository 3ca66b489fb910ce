"""Whole training runs: they learn, repeat, resume, and leave a complete folder."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from safetensors.torch import load_file

from vqlab.cli.main import train_main
from vqlab.data import ImageData, load_images
from vqlab.errors import VqlabError
from vqlab.migrate import FORMAT_VERSION
from vqlab.quantizers import NonFiniteError
from vqlab.results import plot_run
from vqlab.tokenizer import Tokenizer
from vqlab.training import load_run_config, train
from vqlab.training.module import TokenizerModule
from vqlab.training.run import pixel_variance

Comparable = Callable[[Path], dict[str, Any]]
Snapshot = Callable[[Path], dict[str, bytes]]

#: EMA with revival at nearly every check, so that revived codes and their counts are part of what has to be equal.
VQVAE = {"quantizer": "vqvae", "vqvae": {"revival_threshold": 0.9, "revival_interval": 2, "ema_decay": 0.8}}
STACK = {"levels": 2, "optim": {"level_dropout": 0.5}}
KINDS = {
    "ddcl": {},
    "vqvae": VQVAE,
    "vqvae-gradient": {"quantizer": "vqvae", "vqvae": {"update": "gradient"}},
    "none": {"quantizer": "none"},
    "residual": STACK,
    "residual-vqvae": {**VQVAE, "levels": 2},
    "cascade": {**STACK, "topology": "cascade"},
}


def checkpoint(folder: Path) -> Path:
    return folder / "checkpoints" / "last.ckpt"


# -- the golden run -----------------------------------------------------------------------------------------------------------------


def mean_image_psnr() -> float:
    """Per-image PSNR on the test images of always answering with the mean training image."""
    data = load_images("sample")
    mean = data.train.images.float().mean(0)
    mse = (data.test.images.float() - mean).square().flatten(1).mean(1) / 255**2
    return float(-10 * mse.log10().mean())


def test_golden_run_learns(golden: Path) -> None:
    table = pd.read_csv(golden / "metrics.csv")
    assert table["epoch"].tolist() == [1, 2, 3, 4]
    assert table["step"].tolist() == [25, 50, 75, 100]
    psnr = table["test/hard/psnr"].to_numpy()
    assert mean_image_psnr() == pytest.approx(12.82, abs=0.01)
    assert psnr.min() > mean_image_psnr() + 2
    assert psnr[-1] > mean_image_psnr() + 5
    assert psnr[-1] > psnr[0] + 1
    assert psnr.argmax() == 3
    assert (np.diff(table["train/loss"]) < 0).all()
    if golden.name == "ddcl":
        assert (table["test/level1/utilization"] >= 0.9).all()
        assert table["test/gap"].abs().iloc[-1] < 0.3
    elif golden.name == "vqvae":
        assert (table["test/level1/utilization"] >= 0.3).all()
    else:
        assert not [name for name in table if "level" in name or "soft" in name]


def test_golden_run_repeats_from_its_saved_configuration(golden: Path) -> None:
    again = golden.parent / f"{golden.name}-again"
    assert train_main(["--config", str(golden / "config.yaml"), "--name", again.name]) == 0
    for name in ("metrics.csv", "steps.csv"):
        tables = [pd.read_csv(folder / name, dtype=str) for folder in (golden, again)]
        pd.testing.assert_frame_equal(*(table.drop(columns="train/images_per_second", errors="ignore") for table in tables))
    for name in ("tokenizer/model.safetensors", "tokenizer/config.json"):
        assert (golden / name).read_bytes() == (again / name).read_bytes()


def test_another_seed_gives_another_run(make_config: Any, few_images: ImageData) -> None:
    runs = [train(make_config(name=f"seed{seed}", seed=seed, epochs=1)) for seed in (0, 1)]
    weights = [load_file(run / "tokenizer" / "model.safetensors") for run in runs]
    assert all(not torch.equal(weights[0][name], weights[1][name]) for name in weights[0] if name.endswith("weight"))


def test_golden_run_leaves_every_file(golden: Path) -> None:
    files = {str(path.relative_to(golden)) for path in golden.rglob("*") if path.is_file()}
    expected = {"config.yaml", "metrics.csv", "steps.csv", "counts.npz", "reconstructions.npz", "summary.json", "checkpoints/last.ckpt"}
    expected |= {"tokenizer/model.safetensors", "tokenizer/config.json", "plots/training.png", "plots/reconstructions.png"}
    if golden.name != "none":
        expected |= {"plots/usage.png", "plots/counts.png"}
    assert expected <= files
    assert [name for name in files if name.startswith("tensorboard/events")]
    assert not [name for name in files if name.endswith(".tmp")]

    summary = json.loads((golden / "summary.json").read_text())
    table = pd.read_csv(golden / "metrics.csv")
    assert summary["quantizer"] == golden.name
    assert summary["epochs"] == 4
    for key, row in (("test", -1), ("first_epoch", 0)):
        assert summary[key] == pytest.approx({name: table[name].iloc[row] for name in table if name.startswith("test/")}, rel=1e-12)
    assert summary["bits_per_image"] == (None if golden.name == "none" else 64 * 6)

    tokenizer = Tokenizer.from_pretrained(golden / "tokenizer")
    assert summary["parameters"] == sum(p.numel() for p in tokenizer.parameters())
    pictures = np.load(golden / "reconstructions.npz")
    assert {name: pictures[name].shape for name in pictures.files} == dict.fromkeys(
        ("original", "hard", "soft") if golden.name == "ddcl" else ("original", "hard"), (16, 3, 32, 32)
    )
    images = load_images("sample").test.images
    assert np.array_equal(pictures["original"], images[:16].numpy())
    if golden.name != "none":
        ids = tokenizer.encode(images)
        counts = np.load(golden / "counts.npz")
        assert np.array_equal(counts["level1"], torch.bincount(ids.flatten(), minlength=64).numpy())
        assert np.array_equal(pictures["hard"], (tokenizer.decode_indices(ids[:16]) * 255).round().byte().numpy())


def test_golden_schedules(golden: Path) -> None:
    steps = pd.read_csv(golden / "steps.csv")
    assert steps["step"].tolist() == list(range(1, 101, 5))
    assert steps["lr"].max() <= 3e-3
    assert steps["lr"].iloc[0] < 1e-3
    assert pd.read_csv(golden / "metrics.csv")["lr"].iloc[-1] == pytest.approx(3e-5, rel=1e-6)
    if golden.name == "ddcl":
        assert steps["level1/tau"].iloc[0] == pytest.approx(0.1, rel=1e-6)
        cooling = steps["step"] <= 0.6 * 100  # then it stays at its end
        assert (np.diff(steps["level1/tau"][cooling]) < 0).all()
        assert steps["level1/tau"][~cooling].to_numpy() == pytest.approx(0.002, rel=1e-6)
        state = load_file(golden / "tokenizer" / "model.safetensors")
        assert int(state["quantizer.levels.0.schedule.step"]) == 100


# -- stacks -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", ["residual", "cascade"])
@pytest.mark.parametrize("quantizer", ["ddcl", "vqvae"])
def test_stacks(topology: str, quantizer: str, make_config: Any, few_images: ImageData) -> None:
    folder = train(make_config(quantizer=quantizer, topology=topology, levels=3, codebook_size=[16, 8, 4]))
    steps, table = pd.read_csv(folder / "steps.csv"), pd.read_csv(folder / "metrics.csv")
    assert len(steps) == 16
    for level in (1, 2, 3):
        if quantizer == "ddcl":
            assert (steps[f"level{level}/V"] >= 0).all()
            assert (steps[f"level{level}/margin"] > 0).all()
            parts = steps[f"level{level}/L_OLS"] + steps[f"level{level}/V"]
            np.testing.assert_allclose(parts, steps[f"level{level}/L_q"], rtol=1e-4)
        assert table[f"test/level{level}/utilization"].between(0, 1).all()
        assert np.isfinite(table[f"test/prefix{level}/psnr"]).all()
    pd.testing.assert_series_equal(table["test/prefix3/psnr"], table["test/hard/psnr"], check_names=False)
    assert "test/prefix4/psnr" not in table
    counts = np.load(folder / "counts.npz")
    assert {name: (counts[name].size, counts[name].sum()) for name in counts.files} == {
        "level1": (16, 20 * 16),
        "level2": (8, 20 * 16),
        "level3": (4, 20 * 16),
    }


def test_cascade_sizes_shrink_by_default(make_config: Any, few_images: ImageData) -> None:
    folder = train(make_config(topology="cascade", levels=2, codebook_size=16, epochs=1))
    assert json.loads((folder / "summary.json").read_text())["codebook_size"] == [16, 4]


# -- resume -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_resume_in_the_middle_of_an_epoch(kind: str, make_config: Any, few_images: ImageData, comparable: Comparable) -> None:
    changes = KINDS[kind]
    whole = train(make_config(name="whole", **changes), max_steps=10)
    train(make_config(name="parts", **changes), max_steps=5)
    middle = torch.load(checkpoint(whole.parent / "parts"), weights_only=True)
    assert middle["global_step"] == 5
    assert middle["loops"]["fit_loop"]["state_dict"]["combined_loader"][0] == {"epoch": 0, "batch": 5}
    parts = train(load_run_config(whole.parent / "parts"), resume=True, max_steps=10)
    expected, found = comparable(checkpoint(whole)), comparable(checkpoint(parts))
    assert expected["global_step"] == "10"
    assert expected.keys() == found.keys()
    assert [name for name in expected if expected[name] != found[name]] == []
    rows = [pd.read_csv(folder / "metrics.csv", dtype=str).drop(columns="train/images_per_second") for folder in (whole, parts)]
    assert len(rows[0]) == 1
    pd.testing.assert_frame_equal(*rows)


@pytest.mark.parametrize("kind", KINDS)
def test_resume_after_an_epoch(kind: str, make_config: Any, few_images: ImageData, comparable: Comparable) -> None:
    changes = KINDS[kind]
    whole = train(make_config(name="whole", **changes))
    train(make_config(name="parts", **changes), max_steps=8)
    assert len(pd.read_csv(whole.parent / "parts" / "metrics.csv")) == 1
    parts = train(load_run_config(whole.parent / "parts"), resume=True)
    expected, found = comparable(checkpoint(whole)), comparable(checkpoint(parts))
    assert expected["global_step"] == "16"
    assert [name for name in expected if expected[name] != found[name]] == []
    for name in ("metrics.csv", "steps.csv"):
        rows = [pd.read_csv(f / name, dtype=str).drop(columns="train/images_per_second", errors="ignore") for f in (whole, parts)]
        assert len(rows[0]) == (2 if name == "metrics.csv" else 16)
        pd.testing.assert_frame_equal(*rows)
    assert (whole / "tokenizer" / "model.safetensors").read_bytes() == (parts / "tokenizer" / "model.safetensors").read_bytes()
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (whole, parts)]
    assert summaries[0]["test"] == summaries[1]["test"]
    assert 0 < summaries[1]["seconds"] < 60


def test_revival_took_place(make_config: Any, few_images: ImageData) -> None:
    """Without it the two tests above would say nothing about revived codes."""
    folder = train(make_config(**VQVAE))
    revived = pd.read_csv(folder / "steps.csv")["level1/revived"]
    assert 0 < revived.iloc[4] < revived.iloc[9] < revived.iloc[15]


def test_resume_with_accumulation_stops_between_steps(make_config: Any, few_images: ImageData, comparable: Comparable) -> None:
    changes = {**VQVAE, "batch_size": 4, "optim": {"accumulate": 3}}  # 16 micro-batches, 6 steps an epoch
    whole = train(make_config(name="whole", **changes), max_steps=9)
    train(make_config(name="parts", **changes), max_steps=5)
    parts = train(load_run_config(whole.parent / "parts"), resume=True, max_steps=9)
    expected, found = comparable(checkpoint(whole)), comparable(checkpoint(parts))
    assert expected["global_step"] == "9"
    assert [name for name in expected if expected[name] != found[name]] == []


def test_resuming_a_finished_run_changes_nothing(make_config: Any, few_images: ImageData, snapshot: Snapshot) -> None:
    folder = train(make_config())
    before = snapshot(folder)
    assert train(load_run_config(folder), resume=True) == folder
    assert snapshot(folder) == before


def test_resume_of_a_renamed_run(make_config: Any, few_images: ImageData, comparable: Comparable) -> None:
    whole = train(make_config(name="whole"))
    first = train(make_config(name="first"), max_steps=8)
    moved = first.rename(first.parent / "moved")
    assert train(load_run_config(moved), resume=True) == moved
    assert comparable(checkpoint(moved)) == comparable(checkpoint(whole))
    assert not first.exists()


# -- interrupts ---------------------------------------------------------------------------------------------------------------------


def interrupt_at(monkeypatch: pytest.MonkeyPatch, step: int, times: int) -> None:
    original = TokenizerModule.training_step

    def training_step(self: TokenizerModule, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = original(self, batch, batch_idx)
        if self.global_step == step:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        return loss

    monkeypatch.setattr(TokenizerModule, "training_step", training_step)


def test_interrupt_leaves_an_exact_checkpoint(
    make_config: Any, few_images: ImageData, comparable: Comparable, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(make_config(name="whole", **STACK))
    with monkeypatch.context() as patch:
        interrupt_at(patch, step=3, times=1)
        with pytest.raises(KeyboardInterrupt, match=r"go on with: python train.py --resume .*parts"):
            train(make_config(name="parts", **STACK))
    parts = whole.parent / "parts"
    assert torch.load(checkpoint(parts), weights_only=True)["global_step"] == 4  # the running step was finished
    train(load_run_config(parts), resume=True)
    assert comparable(checkpoint(parts)) == comparable(checkpoint(whole))


def test_second_interrupt_stops_at_once(
    make_config: Any, few_images: ImageData, comparable: Comparable, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(make_config(name="whole"))
    with monkeypatch.context() as patch:
        interrupt_at(patch, step=3, times=2)
        with pytest.raises(KeyboardInterrupt, match="before the first checkpoint"):
            train(make_config(name="early"))
    with monkeypatch.context() as patch:
        interrupt_at(patch, step=11, times=2)
        with pytest.raises(KeyboardInterrupt, match="--resume"):
            train(make_config(name="parts"))
    parts = whole.parent / "parts"
    assert torch.load(checkpoint(parts), weights_only=True)["global_step"] == 8
    train(load_run_config(parts), resume=True)
    assert comparable(checkpoint(parts)) == comparable(checkpoint(whole))


# -- numbers that are not numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ddcl", "vqvae", "vqvae-gradient", "residual"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_bad_pixel_stops_the_training(
    kind: str, value: float, make_config: Any, few_images: ImageData, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, seen = TokenizerModule._unit, {}

    def unit(self: TokenizerModule, images: torch.Tensor) -> torch.Tensor:
        out = original(self, images)
        if self.global_step == 5:
            out[0, 0, 3, 3] = value
            seen["module"] = self
            seen["before"] = {k: v.clone() for k, v in self.tokenizer.state_dict().items()}
        return out

    monkeypatch.setattr(TokenizerModule, "_unit", unit)
    with pytest.raises(NonFiniteError, match=r"^step 5: .*NaN or inf") as caught:
        train(make_config(**KINDS[kind]))
    assert "\n" not in str(caught.value)
    after = seen["module"].tokenizer.state_dict()
    assert after.keys() == seen["before"].keys()
    assert [name for name in after if after[name].numpy().tobytes() != seen["before"][name].numpy().tobytes()] == []


def test_gradient_that_overflows_stops_the_training(make_config: Any, few_images: ImageData, monkeypatch: pytest.MonkeyPatch) -> None:
    original, seen = TokenizerModule.training_step, {}

    def training_step(self: TokenizerModule, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = original(self, batch, batch_idx)
        if self.global_step == 3:
            seen["module"], seen["weights"] = self, [p.detach().clone() for p in self.parameters()]
            next(self.tokenizer.decoder.parameters()).register_hook(lambda gradient: gradient * float("inf"))
        return loss

    monkeypatch.setattr(TokenizerModule, "training_step", training_step)
    with pytest.raises(NonFiniteError, match=r"^step 3: the norm of the gradient"):
        train(make_config(optim={"gradient_clip": 0.0}))
    assert all(torch.equal(a, b) for a, b in zip(seen["weights"], seen["module"].parameters(), strict=True))


# -- refusals leave nothing behind ----------------------------------------------------------------------------------------------------


def test_existing_run_is_never_overwritten(make_config: Any, few_images: ImageData, snapshot: Snapshot) -> None:
    folder = train(make_config(epochs=1))
    before = snapshot(folder)
    with pytest.raises(VqlabError, match="exists already"):
        train(make_config(epochs=1))
    assert snapshot(folder) == before


@pytest.mark.parametrize("name", ["a/b", "../a", "/a", ".", "..", "a/", "a\0b"])
def test_name_is_one_folder(name: str, make_config: Any, few_images: ImageData, tmp_path: Path) -> None:
    with pytest.raises(VqlabError, match="not a path"):
        train(make_config(name=name))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ddcl": {"tau_start": -1.0}}, "tau_start"),
        ({"ddcl": {"nosuch": 1}}, "unknown setting 'nosuch'"),
        ({"levels": 2, "topology": "cascade", "codebook_size": [8, 16]}, "must not grow"),
        ({"conv": {"downsamplings": 5}}, "downsamplings"),
        ({"run": {"device": "abacus"}}, "abacus"),
    ],
)
def test_refused_settings_leave_no_folder(
    changes: dict[str, Any], message: str, make_config: Any, few_images: ImageData, tmp_path: Path
) -> None:
    with pytest.raises(VqlabError, match=message):
        train(make_config(**changes))
    assert list(tmp_path.iterdir()) == []


def test_root_that_is_a_file(make_config: Any, few_images: ImageData, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(VqlabError, match="cannot create"):
        train(make_config(run={"root": str(tmp_path / "file")}))
    assert (tmp_path / "file").read_text() == "in the way"


def test_missing_data_leaves_no_folder(make_config: Any, tmp_path: Path) -> None:
    with pytest.raises(VqlabError, match="unknown data set 'nosuch'"):
        train(make_config(data="nosuch"))
    assert list(tmp_path.iterdir()) == []


def test_resume_needs_a_run(make_config: Any, few_images: ImageData, tmp_path: Path) -> None:
    with pytest.raises(VqlabError, match=r"config.yaml"):
        load_run_config(tmp_path / "nothing")
    with pytest.raises(VqlabError, match="no checkpoint to resume from"):
        train(make_config(), resume=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "- 1\n- 2\n", "a: [", "nosuch: 1\n", "lr: fast\n", "\x00"])
def test_broken_run_configuration(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(VqlabError):
        load_run_config(tmp_path)


def test_settings_younger_than_the_run_are_named_at_its_resume(
    make_config: Any, few_images: ImageData, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = train(make_config(ddcl={"tau_end": 0.01}, optim={"accumulate": 2}), max_steps=5)
    saved = yaml.safe_load((folder / "config.yaml").read_text())
    assert saved["ddcl"]["tau_end"] == 0.01
    assert saved["ddcl"]["tau_start"] == 0.1  # a default, written down all the same
    config = load_run_config(folder)
    assert capsys.readouterr().err == ""
    del saved["optim"]["accumulate"], saved["ddcl"]["tau_shape"], saved["conv"]
    (folder / "config.yaml").write_text(yaml.safe_dump(saved))
    younger = load_run_config(folder)
    assert younger.optim.accumulate == 1 != config.optim.accumulate
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "warning: " in error
    for setting in ("optim.accumulate = 1", "ddcl.tau_shape = geometric", "conv.width = 128"):
        assert setting in error
    assert "tau_end" not in error


def test_a_run_of_the_first_format_goes_on(make_config: Any, few_images: ImageData, comparable: Comparable) -> None:
    """Checkpoints of the first version neither name it nor say whether a codebook is frozen."""
    whole = train(make_config(name="whole", levels=2), max_steps=10)
    folder = train(make_config(name="parts", levels=2), max_steps=5)
    content = torch.load(checkpoint(folder), weights_only=True)
    assert content.pop("format_version") == FORMAT_VERSION
    frozen = [name for name in content["state_dict"] if name.endswith("_extra_state")]
    assert len(frozen) == 2
    for name in frozen:
        del content["state_dict"][name]
    torch.save(content, checkpoint(folder))
    train(load_run_config(folder), resume=True, max_steps=10)
    assert comparable(checkpoint(folder)) == comparable(checkpoint(whole))


def test_a_run_of_a_later_format_is_refused(make_config: Any, few_images: ImageData, snapshot: Snapshot) -> None:
    folder = train(make_config(), max_steps=5)
    content = torch.load(checkpoint(folder), weights_only=True)
    torch.save({**content, "format_version": FORMAT_VERSION + 1}, checkpoint(folder))
    before = snapshot(folder)
    with pytest.raises(VqlabError, match=r"last.ckpt: format_version is .* written by a later vqlab"):
        train(load_run_config(folder), resume=True)
    assert snapshot(folder) == before


def test_resume_with_another_codebook_size(make_config: Any, few_images: ImageData, snapshot: Snapshot) -> None:
    folder = train(make_config(), max_steps=5)
    content = yaml.safe_load((folder / "config.yaml").read_text())
    content["codebook_size"] = 32
    (folder / "config.yaml").write_text(yaml.safe_dump(content))
    before = snapshot(folder)
    with pytest.raises(VqlabError, match=r"tokenizer.quantizer.levels.0.prototypes.*\(16, 4\).*\(32, 4\)"):
        train(load_run_config(folder), resume=True)
    assert snapshot(folder) == before


# -- small parts --------------------------------------------------------------------------------------------------------------------


def test_pixel_variance() -> None:
    data = load_images("sample")
    expected = (data.train.images.double() / 255).var(correction=0)
    assert pixel_variance(data) == pytest.approx(float(expected), rel=1e-10)


def test_more_images_per_batch_than_images(make_config: Any, few_images: ImageData) -> None:
    folder = train(make_config(batch_size=1000, epochs=2, run={"eval_batch_size": 1000}))
    assert pd.read_csv(folder / "metrics.csv")["step"].tolist() == [1, 2]


def test_batches_of_one_image(make_config: Any, few_images: ImageData) -> None:
    folder = train(make_config(batch_size=1, epochs=1, run={"eval_batch_size": 1}))
    assert pd.read_csv(folder / "metrics.csv")["step"].tolist() == [64]


def test_temperature_advances_once_per_optimizer_step(make_config: Any, few_images: ImageData) -> None:
    folder = train(make_config(batch_size=4, optim={"accumulate": 3}))  # 16 micro-batches: 5 full steps and a short one
    assert pd.read_csv(folder / "metrics.csv")["step"].tolist() == [6, 12]
    state = load_file(folder / "tokenizer" / "model.safetensors")
    assert int(state["quantizer.levels.0.schedule.step"]) == 12
    assert int(state["quantizer.levels.0.schedule.total"]) == 12
    steps = pd.read_csv(folder / "steps.csv")
    assert steps["step"].tolist() == list(range(1, 13))
    np.testing.assert_allclose(steps["level1/tau"], 0.1 * (0.002 / 0.1) ** np.minimum(np.arange(12) / (12 * 0.6), 1), rtol=1e-5)


def test_accumulation_equals_one_batch_of_the_sum(make_config: Any, few_images: ImageData, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without augmentation and batch statistics, two micro-batches of 4 train like one batch of 8, moving averages included."""
    monkeypatch.setattr("vqlab.data.arrays.random_crop_flip", lambda images, generator: images)
    settings = {"quantizer": "vqvae", "vqvae": {"init": "random", "revival_threshold": 0.0}, "normalize_latents": False}
    runs = [
        train(make_config(name="whole", batch_size=8, **settings), max_steps=4),
        train(make_config(name="parts", batch_size=4, optim={"accumulate": 2}, **settings), max_steps=4),
    ]
    states = [torch.load(checkpoint(run), weights_only=True)["state_dict"] for run in runs]
    for name in ("quantizer.levels.0.codebook", "quantizer.levels.0.cluster_size", "encoder.layers.0.weight"):
        torch.testing.assert_close(states[0][f"tokenizer.{name}"], states[1][f"tokenizer.{name}"], rtol=1e-3, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Data has no positive values")
@pytest.mark.parametrize("quantizer", ["ddcl", "vqvae"])
def test_a_codebook_of_one_code(quantizer: str, make_config: Any, few_images: ImageData) -> None:
    folder = train(make_config(quantizer=quantizer, codebook_size=1, epochs=1))
    with np.load(folder / "counts.npz") as counts:
        assert counts["level1"].tolist() == [20 * 16]
    assert pd.read_csv(folder / "metrics.csv")["test/level1/perplexity"].tolist() == [1.0]
    assert plot_run(folder)

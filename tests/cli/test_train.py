"""`train.py`: options, configuration files, refusals in one line, resume; and two processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from vqlab.cli.evaluate import evaluate
from vqlab.cli.main import main, train_main, train_parser
from vqlab.cli.train import config_from_options
from vqlab.config import TrainConfig
from vqlab.training import load_run_config
from vqlab.training.module import TokenizerModule

REPOSITORY = Path(__file__).parents[2]
#: Seconds after which a process counts as hung.
TIME_OUT = 240
SMALL = ["--data", "sample", "--conv.width", "8", "--conv.residual_width", "4", "--codebook_size", "16", "--codebook_dim", "4"]
SMALL += ["--epochs", "1", "--batch_size", "200", "--run.precision", "float32", "--run.device", "cpu", "--run.threads", "1"]
SMALL += ["--run.progress", "false", "--run.tensorboard", "false"]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[TrainConfig]:
    """The configurations that training would have been started with."""
    seen: list[TrainConfig] = []

    def train(config: TrainConfig, **kwargs: Any) -> Path:
        seen.append(config)
        return Path("nowhere")

    monkeypatch.setattr("vqlab.cli.train.train", train)
    monkeypatch.setattr("vqlab.cli.train.plot_run", lambda folder: [])
    return seen


# -- what wins ------------------------------------------------------------------------------------------------------------------------


def test_command_line_wins_over_the_file(tmp_path: Path, recorded: list[TrainConfig]) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("lr: 1.0\nepochs: 7\noptim:\n  epsilon: 0.05\n  accumulate: 2\nddcl:\n  tau_end: 0.02\n")
    assert train_main(["--config", str(file), "--lr", "2", "--optim.accumulate", "4"]) == 0
    config = recorded[0]
    assert (config.lr, config.epochs, config.optim.epsilon, config.optim.accumulate) == (2.0, 7, 0.05, 4)
    assert config.codebook["tau_end"] == 0.02
    assert config.optim.hard_fraction == TrainConfig().optim.hard_fraction


def test_later_file_wins_over_an_earlier_one(tmp_path: Path, recorded: list[TrainConfig]) -> None:
    (tmp_path / "a.yaml").write_text("lr: 1.0\nepochs: 7\n")
    (tmp_path / "b.yaml").write_text("lr: 3.0\n")
    assert train_main(["--config", str(tmp_path / "a.yaml"), "--config", str(tmp_path / "b.yaml")]) == 0
    assert (recorded[0].lr, recorded[0].epochs) == (3.0, 7)


def test_defaults_are_those_of_the_classes(recorded: list[TrainConfig]) -> None:
    assert train_main([]) == 0
    config = recorded[0]
    assert config == TrainConfig(codebook=config.codebook)
    assert config.codebook["tau_start"] == 0.1


def test_both_entries_mean_the_same(recorded: list[TrainConfig]) -> None:
    options = ["--quantizer", "vqvae", "--levels", "2", "--codebook_size", "[32, 16]", "--vqvae.update", "gradient"]
    assert train_main(options) == 0
    assert main(["train", *options]) == 0
    assert recorded[0] == recorded[1]
    assert recorded[0].codebook_sizes == [32, 16]
    assert recorded[0].codebook["update"] == "gradient"


@pytest.mark.parametrize("file", sorted(path.name for path in (REPOSITORY / "configs").glob("*.yaml")))
def test_shipped_configurations_are_accepted(file: str, recorded: list[TrainConfig]) -> None:
    base, path = REPOSITORY / "configs" / "base.yaml", REPOSITORY / "configs" / file
    assert train_main(["--config", str(base), "--config", str(path)]) == 0
    content = yaml.safe_load(path.read_text())
    assert {key: getattr(recorded[0], key) for key, value in content.items() if not isinstance(value, dict)} == {
        key: value for key, value in content.items() if not isinstance(value, dict)
    }


def test_saved_configuration_repeats_the_run(golden: Path, recorded: list[TrainConfig]) -> None:
    assert train_main(["--config", str(golden / "config.yaml")]) == 0
    saved = load_run_config(golden)
    assert recorded[0] == saved
    assert recorded[0].lr == 3e-3
    content = yaml.safe_load((golden / "config.yaml").read_text())
    assert content["quantizer"] == golden.name
    if golden.name != "none":
        assert len(content[golden.name]) > 5  # resolved: every setting of the quantizer is written down


# -- refusals -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--nosuch", "1"], "nosuch"),
        (["--optim.nosuch", "1"], "nosuch"),
        (["--ddcl.nosuch", "1"], "nosuch"),
        (["stray"], "stray"),
        (["--lr", "fast"], "lr"),
        (["--lr", "-1"], "lr must be positive"),
        (["--lr", "nan"], "lr"),
        (["--epochs", "1.5"], "epochs"),
        (["--epochs", "0"], "epochs must be at least 1"),
        (["--levels"], "levels"),
        (["--codebook_size", "1.5"], "codebook_size"),
        (["--codebook_size", "0"], "codebook_size must be at least 1"),
        (["--codebook_size", "[8, 8]"], "lists 2 levels, but levels is 1"),
        (["--levels", "2", "--topology", "cascade", "--codebook_size", "[8, 16]"], "must not grow"),
        (["--quantizer", "pq"], "quantizer must be one of"),
        (["--vqvae.ema_decay", "0.9"], "--vqvae.ema_decay is set, but the quantizer is ddcl"),
        (["--quantizer", "vqvae", "--ddcl.tau_end", "0.1"], "--ddcl.tau_end is set, but the quantizer is vqvae"),
        (["--quantizer", "none", "--vqvae.update", "gradient"], "--vqvae.update is set, but the quantizer is none"),
        (["--quantizer", "none", "--levels", "2"], "none has no levels"),
        (["--quantizer", "none", "--codebook_size", "64"], "--codebook_size is set, but quantizer none has no codes"),
        (["--quantizer", "none", "--topology", "cascade"], "--topology is set, but quantizer none has no codes"),
        (["--quantizer", "none", "--optim.epsilon", "0.5"], "--optim.epsilon is set, but no codes are trained"),
        (["--quantizer", "vqvae", "--optim.epsilon", "0.5"], "--optim.epsilon is set, but no codes are trained"),
        (["--quantizer", "vqvae", "--optim.hard_fraction", "0.5"], "--optim.hard_fraction is set, but quantizer vqvae decodes"),
        (["--optim.level_dropout", "0.5"], "--optim.level_dropout is set, but there is one level"),
        (["--config", "dropout.yaml"], "--optim.level_dropout is set, but there is one level"),
        (["--ddcl.tau_start", "0"], "tau_start"),
        (["--ddcl.init", "magic"], "kmeans, data, random"),
        (["--quantizer", "vqvae", "--vqvae.update", "magic"], "ema, gradient"),
        (["--optim.hard_fraction", "0.7", "--optim.level_dropout", "0.7"], "must not exceed 1"),
        (["--optim.accumulate", "0"], "optim.accumulate"),
        (["--conv.downsamplings", "6"], "downsamplings"),
        (["--conv.width", "0"], "width"),
        (["--data", "nosuch"], "cifar10, sample"),
        (["--run.precision", "float16"], "precision"),
        (["--run.device", "abacus"], "abacus"),
        (["--name", "a/b"], "not a path"),
        (["--name", "../escape"], "not a path"),
        (["--config", "missing.yaml"], "missing.yaml"),
        (["--config", "unknown.yaml"], "nosuch"),
        (["--config", "nested.yaml"], "nosuch"),
        (["--config", "broken.yaml"], "did not find expected"),
        (["--config", "other.yaml"], "vqvae"),
        (["--resume", "missing"], "missing"),
    ],
)
def test_refused_in_one_line_and_nothing_is_created(
    options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {"unknown": "nosuch: 1\n", "nested": "optim:\n  nosuch: 1\n", "broken": "lr: [1\n", "other": "vqvae:\n  ema_decay: 0.9\n"}
    files["dropout"] = "optim:\n  level_dropout: 0.5\n"
    for name, text in files.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    before = sorted(tmp_path.rglob("*"))
    extra = [] if options[0] in ("--resume", "--data") else ["--data", "sample"]
    assert train_main([*options, *extra]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1
    assert message in shown.err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "option",
    [
        ["--lr", "0.5"],
        ["--lr", "0.001"],
        ["--epochs", "10"],
        ["--run.progress", "true"],
        ["--ddcl.tau_end", "0.005"],
        ["--config", "c.yaml"],
    ],
)
def test_resume_takes_no_other_option(
    option: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also not one that repeats a default: the run may have been started with another value."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text("epochs: 10\n")
    assert train_main(["--resume", "runs/a", *option]) == 2
    error = capsys.readouterr().err
    assert "takes no other option" in error
    assert error.count("\n") == 1
    assert main(["train", "--resume", "runs/a", *option]) == 2


def test_options_that_are_defaults_of_another_quantizer_do_no_harm() -> None:
    parser = train_parser("train.py")
    config = config_from_options(parser.parse_args(["--vqvae.ema_decay", "0.99"]), parser.get_defaults())
    assert config.quantizer == "ddcl"


def test_settings_that_do_have_an_effect_are_accepted(recorded: list[TrainConfig]) -> None:
    assert train_main(["--quantizer", "vqvae", "--vqvae.update", "gradient", "--optim.epsilon", "0.5"]) == 0
    assert train_main(["--levels", "2", "--optim.level_dropout", "0.5", "--topology", "cascade", "--optim.epsilon", "0.5"]) == 0
    assert train_main(["--optim.hard_fraction", "0.5"]) == 0
    assert len(recorded) == 3


def test_help_fits_on_two_screens(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        train_main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert text.count("\n") <= 120
    for option in ("quantizer", "encoder", "data", "codebook_size", "levels", "epochs", "batch_size", "lr", "seed", "name", "resume"):
        assert re.search(rf"--{option}\b", text), option
    assert "--bsq.*  " in text
    assert "--bsq.diversity" not in text
    with pytest.raises(SystemExit) as caught:
        train_main(["--help_all"])
    assert caught.value.code == 0
    assert "--bsq.diversity" in capsys.readouterr().out


# -- whole runs -----------------------------------------------------------------------------------------------------------------------


def test_run_and_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = [*SMALL, "--name", "a"]
    assert train_main(command) == 0
    shown = capsys.readouterr().out
    assert "test PSNR" in shown
    assert "runs/a/tokenizer" in shown
    assert os.listdir(tmp_path) == ["runs"]
    assert os.listdir(tmp_path / "runs") == ["a"]
    assert train_main(command) == 2
    assert "runs/a exists already" in capsys.readouterr().err
    assert train_main(["--resume", "runs/a"]) == 0
    assert len(pd.read_csv("runs/a/metrics.csv")) == 1


def test_default_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert train_main(SMALL) == 0
    (name,) = os.listdir("runs")
    assert re.fullmatch(r"ddcl-k16-\d{8}-\d{6}", name)


def test_interrupted_run_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    original = TokenizerModule.training_step

    def training_step(self: TokenizerModule, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.global_step == 1:
            signal.raise_signal(signal.SIGINT)
        return original(self, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(TokenizerModule, "training_step", training_step)
        assert train_main([*SMALL, "--name", "a"]) == 130
    assert "interrupted; go on with: python train.py --resume runs/a" in capsys.readouterr().err
    assert train_main(["--resume", "runs/a"]) == 0
    assert pd.read_csv("runs/a/metrics.csv")["step"].tolist() == [4]


def test_failed_computation_is_one_line_and_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    original = TokenizerModule._unit
    monkeypatch.setattr(TokenizerModule, "_unit", lambda self, images: original(self, images) * float("nan"))
    assert train_main([*SMALL, "--name", "a"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: step 0: ")
    assert "NaN or inf" in error
    assert error.count("\n") == 1


# -- processes ------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
    return kept | {"OMP_NUM_THREADS": "1"}


def test_ctrl_c_of_a_real_process(tmp_path: Path, environment: dict[str, str]) -> None:
    command = [sys.executable, str(REPOSITORY / "train.py"), *SMALL, "--name", "a", "--epochs", "10000", "--batch_size", "32"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    watchdog = threading.Timer(TIME_OUT, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("epoch 1:"):
                break
        process.send_signal(signal.SIGINT)
        _, error = process.communicate()
    finally:
        watchdog.cancel()
        process.kill()
    assert process.returncode == 130
    assert "go on with: python train.py --resume runs/a" in error
    assert "Traceback" not in error
    assert torch.load(tmp_path / "runs/a/checkpoints/last.ckpt", weights_only=True)["global_step"] >= 25


TWO_RUNS = """
import sys, torch
from vqlab.cli.main import train_main
from vqlab.training.callbacks import EpochRecorder

def save(self, trainer, module):
    torch.save({"state": module.tokenizer.state_dict(), "rows": self.epochs}, f"{self.folder.path.name}-rank{trainer.global_rank}.pt")

EpochRecorder.on_train_end = save
for quantizer in ("ddcl", "vqvae"):
    if code := train_main([*sys.argv[1:], "--quantizer", quantizer, "--name", quantizer]):
        sys.exit(code)
"""


def test_two_processes(tmp_path: Path, environment: dict[str, str]) -> None:
    """One folder per run, counts over both processes, the same tokenizer and figures on both."""
    (tmp_path / "two_runs.py").write_text(TWO_RUNS)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone", "two_runs.py", *SMALL]
    command += ["--levels", "2", "--epochs", "2", "--batch_size", "50", "--run.eval_batch_size", "60"]
    environment["PYTHONPATH"] = str(REPOSITORY)
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=TIME_OUT, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(os.listdir(tmp_path / "runs")) == ["ddcl", "vqvae"]
    for run in ("ddcl", "vqvae"):
        assert done.stdout.count(f"run runs/{run}") == 1
        ranks = [torch.load(tmp_path / f"{run}-rank{rank}.pt", weights_only=True) for rank in (0, 1)]
        assert ranks[0]["state"].keys() == ranks[1]["state"].keys()
        assert [name for name, value in ranks[0]["state"].items() if not torch.equal(value, ranks[1]["state"][name])] == []
        without_clock = [[{k: v for k, v in row.items() if not k.endswith("second")} for row in rank["rows"]] for rank in ranks]
        assert without_clock[0] == without_clock[1]
        table = pd.read_csv(tmp_path / "runs" / run / "metrics.csv")
        assert table["step"].tolist() == [8, 16]
        with np.load(tmp_path / "runs" / run / "counts.npz") as counts:
            assert [counts[name].sum() for name in ("level1", "level2")] == [200 * 64] * 2
        # The figures of both processes are those of one pass over all images.
        one_pass = evaluate(tmp_path / "runs" / run, "sample", Path("data"), 200)
        found = {name: value for name, value in table.iloc[-1].items() if str(name).startswith("test/")}
        assert {f"test/{name}": value for name, value in one_pass.items()} == pytest.approx(found, rel=1e-4, abs=1e-5)

"""Choices that depend on the machine, on machines made up for the purpose."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vqlab.errors import VqlabError
from vqlab.tokenizer import Tokenizer
from vqlab.training import train
from vqlab.training.runtime import World, choose_runtime, compile_networks, cpu_is_fast_at_bf16, tune_process, world


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with a plain CPU and nothing else."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "avx512_bf16": False, "amx_bf16": False})
    return monkeypatch


@pytest.mark.parametrize(
    ("capabilities", "fast"),
    [({"avx512_bf16": True}, True), ({"amx_bf16": True}, True), ({"avx2": True}, False), ({}, False)],
)
def test_bf16_on_cpus_that_multiply_it(machine: pytest.MonkeyPatch, capabilities: dict[str, bool], fast: bool) -> None:
    machine.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert cpu_is_fast_at_bf16() is fast
    runtime = choose_runtime("auto", "auto")
    assert runtime.accelerator == "cpu"
    assert runtime.lightning_precision == ("bf16-mixed" if fast else "32-true")
    assert runtime.memory_format is (torch.channels_last if fast else torch.contiguous_format)


def test_bf16_without_a_way_to_ask(machine: pytest.MonkeyPatch) -> None:
    machine.delattr(torch.cpu, "get_capabilities")
    assert cpu_is_fast_at_bf16() is False


@pytest.mark.parametrize("capabilities", [{"amx_bf16": True}, {}])
def test_precision_can_be_forced(machine: pytest.MonkeyPatch, capabilities: dict[str, bool]) -> None:
    machine.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert choose_runtime("cpu", "float32").lightning_precision == "32-true"
    assert choose_runtime("cpu", "bf16").lightning_precision == "bf16-mixed"


@pytest.mark.parametrize("supported", [True, False])
def test_gpu(machine: pytest.MonkeyPatch, supported: bool) -> None:
    machine.setattr(torch.cuda, "is_available", lambda: True)
    machine.setattr(torch.cuda, "is_bf16_supported", lambda: supported)
    assert choose_runtime("auto", "auto").accelerator == "gpu"
    for device in ("auto", "gpu", "cuda"):
        assert choose_runtime(device, "auto").bf16 is supported
    assert choose_runtime("gpu", "float32").bf16 is False
    assert choose_runtime("cpu", "auto").bf16 is False  # the CPU is asked, not the GPU


def test_a_mac_computes_on_its_cpu(machine: pytest.MonkeyPatch) -> None:
    """Figures are summed in float64, which the mps device does not have."""
    machine.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_runtime("auto", "auto").accelerator == "cpu"


@pytest.mark.parametrize(
    ("device", "precision", "message"),
    [
        ("gpu", "auto", "no CUDA device"),
        ("cuda", "auto", "no CUDA device"),
        ("mps", "auto", "device must be one of auto, cpu, gpu, cuda, got 'mps'"),
        ("abacus", "auto", "auto, cpu, gpu, cuda"),
        ("cpu", "float16", "auto, bf16, float32"),
    ],
)
def test_what_is_not_there_is_refused(machine: pytest.MonkeyPatch, device: str, precision: str, message: str) -> None:
    with pytest.raises(VqlabError, match=message):
        choose_runtime(device, precision)


def test_world(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert world() == World(1, 0, 1)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    assert world() == World(4, 3, 4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert world() == World(4, 3, 2)


def test_tune_process() -> None:
    threads = torch.get_num_threads()
    try:
        tune_process(1)
        assert torch.get_num_threads() == 1
        tune_process()
        assert torch.get_num_threads() == 1  # 0 leaves them as they are
        tiny = torch.tensor([1e-40]) * 0.5
        assert float(tiny) == 0.0
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)


def test_a_compiled_run_is_the_eager_run(few_images: Any, make_config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the backend that traces as Inductor does and leaves out its minutes of C++ compilation."""
    torch.compiler.reset()
    used = []

    def traced(*networks: torch.nn.Module) -> None:
        used.extend(networks)
        compile_networks(*networks, backend="aot_eager")

    monkeypatch.setattr("vqlab.training.run.compile_networks", traced)
    states = []
    for compiled in (False, True):
        folder = train(make_config(name=f"compiled-{compiled}", epochs=1, run={"compile": compiled}))
        states.append(Tokenizer.from_pretrained(folder / "tokenizer").state_dict())
    assert len(used) == 2
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, rtol=1e-3, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")

"""Speed of whole training steps: quantizers against each other, precisions against each other, Lightning against a bare loop.

Everything is measured in one process, a few steps of each in turn, round after round, so that a machine whose speed drifts treats all
alike. Reported are medians over all steps, and ratios of medians.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import lightning as L
import torch
from tqdm import tqdm

from vqlab.config import RunConfig, TrainConfig
from vqlab.data import BatchLoader, ImageBatch, load_images
from vqlab.quantizers import PEER_NAMES, QUANTIZER_NAMES
from vqlab.training.callbacks import TrainingBar
from vqlab.training.module import TokenizerModule
from vqlab.training.run import build_module
from vqlab.training.runtime import Runtime, choose_runtime, cpu_is_fast_at_bf16, tune_process


@dataclass(frozen=True)
class StepSpeed:
    """One row: median step time in milliseconds and training images per second."""

    quantizer: str
    precision: str
    loop: str
    step_ms: float
    images_per_second: float


@dataclass(frozen=True)
class TrainBenchmark:
    """All rows, and the ratios they are measured for (step time over that of the second-named)."""

    rows: list[StepSpeed]
    ratios: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def table(self) -> str:
        """Markdown table of rows, then the ratios."""
        lines = ["| quantizer | precision | loop | ms per step | images/s |", "|---|---|---|---|---|"]
        lines += [f"| {r.quantizer} | {r.precision} | {r.loop} | {r.step_ms:.1f} | {r.images_per_second:.0f} |" for r in self.rows]
        return "\n".join([*lines, "", *(f"{name}: {value:.3f}" for name, value in self.ratios.items())])


class BareLoop:
    """The training step in a plain loop: the same module, optimizer, schedule and clipping, without a trainer.

    beside_network: seconds of each step for making the batch (augmentation included) and for figures (usage, means of losses).
    """

    def __init__(self, module: TokenizerModule, runtime: Runtime, batches: Iterator[ImageBatch]) -> None:
        self.module, self.runtime, self.batches = module.train(), runtime, batches
        self.beside_network: list[float] = []
        record = module.record

        def timed_record(*args: Any) -> None:
            start = time.perf_counter()
            record(*args)
            self.beside_network[-1] += time.perf_counter() - start

        setattr(module, "record", timed_record)  # noqa: B010 (a method may not be assigned to)
        made = module.configure_optimizers()
        self.optimizer, self.scheduler = made["optimizer"], made["lr_scheduler"]["scheduler"]

    def step(self) -> float:
        """One optimizer step; its seconds, data included."""
        start = time.perf_counter()
        batch = next(self.batches)
        self.beside_network.append(time.perf_counter() - start)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.runtime.bf16):
            loss = self.module.training_step(batch, 0)
        self.optimizer.zero_grad()
        loss.backward()
        self.module.configure_gradient_clipping(self.optimizer)
        self.optimizer.step()
        self.module.tokenizer.quantizer.after_step()
        self.scheduler.step()
        return time.perf_counter() - start


class _StepTimer(L.Callback):
    """Seconds from the end of one training batch to the end of the next."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._last: float | None = None

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        now = time.perf_counter()
        if self._last is not None:
            self.seconds.append(now - self._last)
        self._last = now


def _endless(loader: BatchLoader) -> Iterator[ImageBatch]:
    while True:
        yield from loader


def _lightning_seconds(module: TokenizerModule, runtime: Runtime, loader: BatchLoader, steps: int) -> list[float]:
    timer = _StepTimer()
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        precision=runtime.lightning_precision,  # type: ignore[arg-type]
        max_steps=steps,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        callbacks=[timer, TrainingBar(refresh_rate=20)],
    )
    trainer.fit(module, loader)
    return timer.seconds[1:]


def benchmark_training(config: TrainConfig, rounds: int = 6, steps: int = 8) -> TrainBenchmark:
    """Time training steps of every quantizer but the peers in a bare loop, and of `config.quantizer` under Lightning (CPU).

    In float32 and, where the CPU multiplies bf16 in hardware, in bf16, which Lightning then takes, too.

    rounds x steps steps are timed for each row, after one warm-up round.
    """
    tune_process(config.run.threads)
    data = load_images(config.data, config.run.data_root)
    names = [name for name in QUANTIZER_NAMES if name not in PEER_NAMES]

    def loader() -> BatchLoader:
        return BatchLoader(data.train, config.batch_size, shuffle=True, augment=True, seed=config.seed, drop_last=True)

    def fresh(quantizer: str, runtime: Runtime) -> TokenizerModule:
        torch.manual_seed(config.seed)
        settings = config.codebook if quantizer == config.quantizer else {}
        return build_module(replace(config, quantizer=quantizer, codebook=settings, levels=1), data, runtime, 10_000)

    # A CPU without bf16 products takes seconds for a step in bf16, which no run with `precision: auto` would choose there.
    precisions = ("bf16", "float32") if cpu_is_fast_at_bf16() else ("float32",)
    runtimes = {name: choose_runtime("cpu", name) for name in precisions}
    own = precisions[0]
    loops = {
        (quantizer, name): BareLoop(fresh(quantizer, runtime), runtime, _endless(loader()))
        for name, runtime in runtimes.items()
        for quantizer in names
    }
    seconds: dict[tuple[str, str, str], list[float]] = {(q, name, "bare"): [] for q, name in loops}
    lightning_key = (config.quantizer, own, "lightning")
    seconds[lightning_key] = []
    lightning_module, lightning_loader = fresh(config.quantizer, runtimes[own]), loader()
    for turn in tqdm(range(rounds + 1), desc="rounds"):
        for (quantizer, name), loop in loops.items():
            times = [loop.step() for _ in range(steps)]
            if turn:
                seconds[quantizer, name, "bare"] += times[1:]
        times = _lightning_seconds(lightning_module, runtimes[own], lightning_loader, 2 * steps)
        if turn:
            seconds[lightning_key] += times
    median = {key: statistics.median(times) for key, times in seconds.items()}
    rows = [StepSpeed(*key, step_ms=1e3 * value, images_per_second=config.batch_size / value) for key, value in median.items()]
    ratios = {f"{q} / none, {name}": median[q, name, "bare"] / median["none", name, "bare"] for name in runtimes for q in names}
    if "bf16" in runtimes:
        ratios |= {f"float32 / bf16, {q}": median[q, "float32", "bare"] / median[q, "bf16", "bare"] for q in names}
    ratios[f"lightning / bare loop, {config.quantizer}"] = median[lightning_key] / median[config.quantizer, own, "bare"]
    beside = statistics.median(loops[config.quantizer, own].beside_network)
    network = median[config.quantizer, own, "bare"] - beside
    ratios[f"network, quantizer and optimizer / lightning step, {config.quantizer}"] = network / median[lightning_key]
    return TrainBenchmark(rows, ratios)


def default_benchmark_config(data: str, data_root: str, threads: int) -> TrainConfig:
    """The default training run on another data set or number of threads."""
    return TrainConfig(data=data, run=RunConfig(data_root=data_root, threads=threads))

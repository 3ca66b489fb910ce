"""Training a prior on the ids of a data set, and its figures in bits."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from vqlab.data import ImageData, Split
from vqlab.errors import VqlabError
from vqlab.evaluation import check_sides
from vqlab.prior.config import PriorConfig
from vqlab.prior.layout import Layout
from vqlab.prior.model import Prior, bits
from vqlab.prior.storage import PriorFolder, read_tensors, write_tensors
from vqlab.progress import progress
from vqlab.quantizers import NonFiniteError
from vqlab.storage import write_atomically, write_json
from vqlab.tokenizer import Tokenizer
from vqlab.training.checkpoint import SafeCheckpointIO, StopRequest, stop_on_signal
from vqlab.training.runtime import choose_runtime

ENCODE_BATCH = 500
MEASURE_BATCH = 250
GRADIENT_CLIP = 1.0
#: Learning rate at the end, as a share of the largest.
FINAL_LR = 0.05


@dataclass(frozen=True)
class Tokens:
    """What a prior learns from and is measured on: ids (n, h, w, levels), or (n, tokens, levels), and labels (n,) of both splits."""

    train_ids: Tensor
    train_labels: Tensor
    test_ids: Tensor
    test_labels: Tensor

    @classmethod
    def of(cls, tokenizer: Tokenizer, data: ImageData) -> Tokens:
        """Encode both splits."""
        return cls(encode_split(tokenizer, data.train), data.train.labels, encode_split(tokenizer, data.test), data.test.labels)

    def write(self, path: Path) -> None:
        write_tensors(path, {**vars(self), "train_ids": self.train_ids.int(), "test_ids": self.test_ids.int()})

    @classmethod
    def read(cls, path: Path) -> Tokens:
        """The inverse of `write`; VqlabError where the file cannot be read or holds something else."""
        tensors = read_tensors(path)
        if tensors.keys() != cls.__dataclass_fields__.keys():
            raise VqlabError(f"{path} does not hold the tokens of a prior")
        return cls(**{name: tensor.long() for name, tensor in tensors.items()})


def encode_split(tokenizer: Tokenizer, split: Split, batch_size: int = ENCODE_BATCH) -> Tensor:
    """Ids of all images of a split, always cropped alike: (n, h, w, levels) int64 on the CPU."""
    places = torch.arange(len(split)).split(batch_size)
    return torch.cat([tokenizer.encode(split.plain(chosen)).cpu() for chosen in progress(places, "encode", total=len(places))])


def train_prior(tokenizer: Tokenizer, data: ImageData, config: PriorConfig, out: str | Path, command: str = "") -> Path:
    """Train a prior on the ids of the training split, measure it on the test split, and return its new folder `out`.

    The folder keeps the tokenizer, the tokens and a checkpoint, so that `resume_prior` needs nothing else.  command: kept in config.json.
    Raises VqlabError where `out` exists, the tokenizer has no ids or would pad the images, NonFiniteError where the loss is no number, and
    KeyboardInterrupt, saying how to go on, after Ctrl-C.
    """
    paths = PriorFolder(Path(out))
    if paths.path.exists():
        raise VqlabError(f"{out} exists already: choose another folder, or go on with vqlab prior --resume {out}")
    for split in (data.train, data.test):
        check_sides(split.image_size, tokenizer)
    height, width = data.train.image_size
    layout = Layout.of(tokenizer.quantizer, *tokenizer.token_grid(height, width))
    prior = _fresh(layout, data.classes if config.conditional else (), config)
    tokens = Tokens.of(tokenizer.eval(), data)
    tokenizer.save_pretrained(paths.tokenizer)
    tokens.write(paths.tokens)
    paths.write_config(prior, {**config.to_dict(), "dimensions": tokenizer.channels * height * width, "command": command})
    return _run(prior, tokens, config, paths)


def resume_prior(folder: str | Path) -> Path:
    """Go on with the prior in `folder` from its last checkpoint, as if it had not stopped; a finished one is measured again.

    Raises VqlabError where there is no prior or a file of it is damaged; else as `train_prior`.
    """
    paths = PriorFolder(Path(folder))
    content = paths.read_config()
    training = {name: value for name, value in content["training"].items() if name not in ("dimensions", "command")}
    config = PriorConfig.from_dict(training)
    try:
        prior = Prior.from_config(content["prior"])
    except (KeyError, TypeError, ValueError) as error:
        raise VqlabError(f"{paths.config}: {type(error).__name__}: {error}") from error
    fresh = _fresh(prior.layout, prior.classes, config)
    return _run(fresh, Tokens.read(paths.tokens), config, paths)


# -- figures ----------------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def measure(prior: Prior, ids: Tensor, labels: Tensor, dimensions: int) -> dict[str, Any]:
    """What the ids (n, h, w, levels) cost under the prior, in bits and float32: per token, image and dimension, and by level.

    dimensions: numbers of one image, c h w.
    """
    was_training = prior.training
    prior.eval()
    total = torch.zeros(prior.layout.length, dtype=torch.float64)
    parts = zip(ids.split(MEASURE_BATCH), labels.split(MEASURE_BATCH), strict=True)
    for part, classes in progress(parts, "measure", total=-(-len(ids) // MEASURE_BATCH)):
        total += prior.nats(part, classes if prior.classes else None).double().sum(0).cpu()
    prior.train(was_training)
    per_place = bits(total / len(ids))
    per_image = float(per_place.sum())
    return {
        "bits_per_token": per_image / prior.layout.length,
        "bits_per_image": per_image,
        "bits_per_dim": per_image / dimensions,
        "levels": [{"bits_per_token": float(level.mean())} for level in prior.layout.by_level(per_place)],
    }


def zeroth_order_bits(ids: Tensor, layout: Layout) -> list[float]:
    """Entropy of the ids of each level of the sequence, in bits per token: what a model without context would pay at best."""
    found = []
    for level, kept in enumerate(layout.by_level(layout.flatten(ids))):
        counts = torch.bincount(kept.flatten() - layout.span(level)[0], minlength=layout.codebook_sizes[level])
        share = counts[counts > 0].double() / counts.sum()
        found.append(float(-(share * share.log2()).sum()))
    return found


def _figures(prior: Prior, tokens: Tokens, config: PriorConfig, dimensions: int) -> dict[str, Any]:
    layout = prior.layout
    found = measure(prior, tokens.test_ids, tokens.test_labels, dimensions)
    zeroth = zeroth_order_bits(tokens.test_ids, layout)
    uniform = [math.log2(size) for size in layout.codebook_sizes]
    for level, row in enumerate(found["levels"]):
        row |= {"zeroth_order_bits_per_token": zeroth[level], "uniform_bits_per_token": uniform[level]}

    def mean(values: list[float]) -> float:
        return sum(value * count for value, count in zip(values, layout.places_by_level, strict=True)) / layout.length

    return {
        **found,
        "zeroth_order_bits_per_token": mean(zeroth),
        "uniform_bits_per_token": mean(uniform),
        "parameters": prior.num_parameters,
        "steps": config.steps,
        "images_seen": config.steps * config.batch_size,
        "train_images": len(tokens.train_ids),
        "test_images": len(tokens.test_ids),
        "conditional": bool(prior.classes),
    }


# -- training ---------------------------------------------------------------------------------------------------------------------


def _fresh(layout: Layout, classes: tuple[str, ...], config: PriorConfig) -> Prior:
    """An untrained prior that depends on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return Prior(layout, classes, width=config.width, layers=config.layers, heads=config.heads)


def _run(prior: Prior, tokens: Tokens, config: PriorConfig, paths: PriorFolder) -> Path:
    """Train to the end, from the checkpoint where there is one; write weights and figures."""
    dimensions = paths.read_config()["training"]["dimensions"]
    loop = _Loop(prior, config)
    if paths.checkpoint.exists():
        loop.load(paths.checkpoint)
    with stop_on_signal() as request:
        loop.run(tokens, paths, request)
    paths.write_weights(prior)
    write_json(paths.summary, _figures(prior, tokens, config, dimensions))
    return paths.path


class _Loop:
    """Optimizer steps on batches whose order depends on the seed and the step alone, so that a checkpoint needs no place in the data."""

    def __init__(self, prior: Prior, config: PriorConfig) -> None:
        runtime = choose_runtime("auto", config.precision)
        self.device = torch.device("cpu" if runtime.accelerator == "cpu" else "cuda")
        self.prior, self.config, self.bf16 = prior.to(self.device), config, runtime.bf16
        self.step = 0
        #: (step, training bits per token) of every `log_every` steps.
        self.rows: list[list[float]] = []
        self._orders: dict[int, Tensor] = {}
        matrices = [p for name, p in prior.named_parameters() if p.dim() >= 2 and "wte" not in name and "wpe" not in name]
        others = [p for p in prior.parameters() if not any(p is matrix for matrix in matrices)]
        groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.95))

    def batch(self, images: int) -> Tensor:
        """Places of the images of this step: one epoch after the other, each in an order of its own."""
        size = self.config.batch_size
        epochs = range(self.step * size // images, -(-(self.step + 1) * size // images))
        self._orders = {epoch: self._orders[epoch] if epoch in self._orders else self._order(epoch, images) for epoch in epochs}
        start = self.step * size - epochs[0] * images
        return torch.cat([self._orders[epoch] for epoch in epochs])[start : start + size]

    def _order(self, epoch: int, images: int) -> Tensor:
        return torch.randperm(images, generator=Generator().manual_seed(self.config.seed * 1_000_003 + epoch))

    def lr(self) -> float:
        """Linear warm-up, then half a cosine down to a share of FINAL_LR."""
        config = self.config
        warm = min(1.0, (self.step + 1) / max(config.warmup_steps, 1))
        done = max(0, self.step - config.warmup_steps) / max(config.steps - config.warmup_steps, 1)
        return config.lr * warm * (FINAL_LR + (1 - FINAL_LR) * 0.5 * (1 + math.cos(math.pi * done)))

    def run(self, tokens: Tokens, paths: PriorFolder, request: StopRequest) -> None:
        config = self.config
        self.prior.train()
        for _ in progress(range(self.step, config.steps), "prior", "step", total=config.steps, initial=self.step):
            nats = self._take_step(tokens)
            self.step += 1
            if self.step % config.log_every == 0 or self.step in (1, config.steps):
                self.rows.append([self.step, nats / math.log(2)])
            stop = request.asked
            if stop or self.step % config.save_every == 0 or self.step == config.steps:
                self.save(paths)
            if stop and self.step < config.steps:
                raise KeyboardInterrupt(f"stopped after step {self.step}; go on with: vqlab prior --resume {paths.path}")
        self.prior.eval()

    def _take_step(self, tokens: Tokens) -> float:
        """One optimizer step; the batch's mean -log p, in nats."""
        chosen = self.batch(len(tokens.train_ids))
        labels = tokens.train_labels[chosen] if self.prior.classes else None
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr()
        self.optimizer.zero_grad()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            loss = self.prior.nats(tokens.train_ids[chosen], labels).mean()
        nats = float(loss.detach())
        if not math.isfinite(nats):
            raise NonFiniteError(f"the prior's loss is {nats} at step {self.step + 1}: lower lr")
        loss.backward()
        nn.utils.clip_grad_norm_(self.prior.parameters(), GRADIENT_CLIP)
        self.optimizer.step()
        return nats

    # -- checkpoints ----------------------------------------------------------------------------------------------------------------

    def save(self, paths: PriorFolder) -> None:
        """A checkpoint, and the rows so far as metrics.csv."""
        content = {"step": self.step, "rows": self.rows, "prior": self.prior.state_dict(), "optimizer": self.optimizer.state_dict()}
        SafeCheckpointIO().save_checkpoint(content, paths.checkpoint)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["step", "train_bits_per_token"])
        writer.writerows([int(step), f"{value:.6g}"] for step, value in self.rows)
        write_atomically(paths.metrics, lambda temporary: temporary.write_text(text.getvalue(), encoding="utf-8"))

    def load(self, path: Path) -> None:
        """Go on from a checkpoint; VqlabError where it is damaged or another prior's."""
        content = SafeCheckpointIO().load_checkpoint(path, map_location=self.device)
        if not isinstance(content, dict) or content.keys() != {"step", "rows", "prior", "optimizer"}:
            raise VqlabError(f"{path} is not the checkpoint of a prior")
        try:
            self.prior.load_state_dict(content["prior"])
            self.optimizer.load_state_dict(content["optimizer"])
        except (RuntimeError, ValueError, KeyError) as error:
            raise VqlabError(f"{path} does not fit the prior's configuration: {str(error).splitlines()[-1].strip()}") from error
        self.step, self.rows = content["step"], content["rows"]

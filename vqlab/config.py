"""What a training run is told: plain dataclasses that refuse contradictions."""

from __future__ import annotations

import dataclasses
import inspect
import math
import typing
from dataclasses import dataclass, field
from typing import Any

import torch

from vqlab.backbones import DECODERS, ConvConfig, TimmConfig, TitokConfig, ViTConfig, backbone_kind
from vqlab.data import FilesConfig, check_data
from vqlab.errors import VqlabError
from vqlab.losses import LossConfig
from vqlab.quantizers import CODEBOOKS, QUANTIZER_NAMES, TOPOLOGIES, Codebook, build_codebook
from vqlab.typed import check_types

#: mps is missing: it has no float64, in which figures are summed.
DEVICES = ("auto", "cpu", "gpu", "cuda")
PRECISIONS = ("auto", "bf16", "float32")
#: 4 GiB of float32.
MAX_CODEBOOK_NUMBERS = 2**30


@dataclass(frozen=True)
class OptimConfig:
    """How parameters move.

    Args:
        epsilon: learning rate of the encoder over that of the prototypes; the theory asks for at most 0.1.
        weight_decay: of encoder and decoder; codebooks have none.
        warmup_steps: optimizer steps of linear warm-up before the cosine decay.
        final_lr: learning rate at the end, as a share of lr.
        gradient_clip: largest norm of the gradient, 0 for no limit.
        accumulate: micro-batches per optimizer step.
        hard_fraction: share of each batch that the decoder reads from argmax codes, without gradient into the encoder
            (soft quantizers).
        level_dropout: share of each batch that the decoder reads from a random prefix of the levels (stacks).
        ema_decay: share of the moving average of weights and codebooks that one step keeps; what is evaluated and saved is the average.
            0: no average.
    """

    epsilon: float = 0.1
    weight_decay: float = 0.0
    warmup_steps: int = 200
    final_lr: float = 0.01
    gradient_clip: float = 1.0
    accumulate: int = 1
    hard_fraction: float = 0.25
    level_dropout: float = 0.25
    ema_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_fields(self, "optim.")
        _require(0 < self.epsilon < math.inf, f"optim.epsilon must be positive and finite, got {self.epsilon}")
        _require(0 <= self.weight_decay < math.inf, f"optim.weight_decay must be finite and not negative, got {self.weight_decay}")
        _require(self.warmup_steps >= 0, f"optim.warmup_steps must not be negative, got {self.warmup_steps}")
        _require(0 <= self.final_lr <= 1, f"optim.final_lr must lie in [0, 1], got {self.final_lr}")
        _require(0 <= self.gradient_clip < math.inf, f"optim.gradient_clip must be finite and not negative, got {self.gradient_clip}")
        _require(self.accumulate >= 1, f"optim.accumulate must be at least 1, got {self.accumulate}")
        _require(0 <= self.ema_decay < 1, f"optim.ema_decay must lie in [0, 1), got {self.ema_decay}")
        for name in ("hard_fraction", "level_dropout"):
            value = getattr(self, name)
            _require(0 <= value <= 1, f"optim.{name} must lie in [0, 1], got {value}")
        _require(
            self.hard_fraction + self.level_dropout <= 1,
            "optim.hard_fraction and optim.level_dropout share one batch: their sum must not exceed 1",
        )


@dataclass(frozen=True)
class RunConfig:
    """Where a run lives and how it computes.

    Args:
        root: folder that holds the run folders.
        data_root: folder that holds the data sets.
        precision: "auto" (bf16 where the device is fast at it), "bf16" or "float32"; the quantizer always computes in float32.
        device: "auto" (a GPU where there is one), "cpu" or "gpu" (or "cuda").
        threads: CPU threads, 0 for all cores.
        log_every: optimizer steps between rows of steps.csv.
        eval_batch_size: images per evaluation batch.
        usage_warning: warn when a level's training epoch uses a smaller share of its codes than this.
        tensorboard: also write TensorBoard logs.
        wandb: also log to Weights & Biases, project vqlab unless WANDB_PROJECT names one.
        mlflow: also log to MLflow, into the run folder unless MLFLOW_TRACKING_URI names a server.
        progress: show a progress bar.
        compile: compile encoder and decoder by torch.compile (needs a C++ compiler on CPUs); the quantizer stays as it is.
        checkpoint_every: optimizer steps between checkpoints within an epoch; 0: only after each epoch.
        timeout: seconds for which several processes wait for each other before all of them give up.
    """

    root: str = "runs"
    data_root: str = "data"
    precision: str = "auto"
    device: str = "auto"
    threads: int = 0
    log_every: int = 20
    eval_batch_size: int = 500
    usage_warning: float = 0.5
    tensorboard: bool = True
    wandb: bool = False
    mlflow: bool = False
    progress: bool = True
    compile: bool = False
    checkpoint_every: int = 0
    timeout: int = 600

    def __post_init__(self) -> None:
        _check_fields(self, "run.")
        check_choice("run.precision", self.precision, PRECISIONS)
        check_choice("run.device", self.device, DEVICES)
        _require(self.log_every >= 1, f"run.log_every must be at least 1, got {self.log_every}")
        _require(self.eval_batch_size >= 1, f"run.eval_batch_size must be at least 1, got {self.eval_batch_size}")
        _require(self.checkpoint_every >= 0, f"run.checkpoint_every must not be negative, got {self.checkpoint_every}")
        _require(self.timeout >= 1, f"run.timeout must be at least 1 second, got {self.timeout}")
        _require(self.threads >= 0, f"run.threads must not be negative, got {self.threads}")
        _require(0 <= self.usage_warning <= 1, f"run.usage_warning must lie in [0, 1], got {self.usage_warning}")


@dataclass(frozen=True)
class TrainConfig:
    """A training run.

    Args:
        quantizer: ddcl, vqvae, a peer (bsq, fsq, gumbel, lfq, rotation, simvq, softvq), or none for the plain autoencoder.
        encoder: conv, titok (a sequence of tokens in place of a grid), or timm:MODEL with any model of timm that has a feature grid.
        decoder: conv, vit or titok; default: titok for titok, else conv.
        data: cifar10, sample (1,000 CIFAR-10 images that come with the package), or your own images: a folder, a list of files, tar shards,
            or hf:NAME.
        image_size: pixels that your own images are cropped to, one number or [height, width].
        codebook_size: codes per level; one number for all levels or a list with one for each. A cascade that is given one number has a
            quarter of the codes from level to level.
        levels: number of quantizer levels.
        epochs: passes over the training split.
        batch_size: images per optimizer step and process (times optim.accumulate).
        lr: largest learning rate of encoder and decoder; prototypes have lr / optim.epsilon.
        seed: of initialisation, data order and augmentation.
        name: folder of the run under run.root; default: quantizer, codebook size and time.
        topology: residual (each level quantizes what is left), pyramid (the same on grids that double from level to level) or cascade (each
            level quantizes the centroids of the one before).
        codebook_dim: dimension of the codes, the width of encoder output and decoder input; default: the quantizer's own, log2 K for lfq
            and bsq, the number of factors for fsq, 16 for all others.
        normalize_latents: fix the scale of the latents, mean 0 and variance 1 per channel.
        codebook: settings of the chosen quantizer, by their names in its class.
    """

    quantizer: str = "ddcl"
    encoder: str = "conv"
    decoder: str | None = None
    data: str = "cifar10"
    image_size: int | list[int] | None = None
    codebook_size: int | list[int] = 512
    levels: int = 1
    epochs: int = 10
    batch_size: int = 128
    lr: float = 4e-3
    seed: int = 0
    name: str | None = None
    topology: str = "residual"
    codebook_dim: int | None = None
    normalize_latents: bool = True
    codebook: dict[str, Any] = field(default_factory=dict)
    conv: ConvConfig = field(default_factory=ConvConfig)
    timm: TimmConfig = field(default_factory=TimmConfig)
    titok: TitokConfig = field(default_factory=TitokConfig)
    vit: ViTConfig = field(default_factory=ViTConfig)
    files: FilesConfig = field(default_factory=FilesConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        _check_fields(self)
        check_choice("quantizer", self.quantizer, QUANTIZER_NAMES)
        backbone_kind(self.encoder)
        _require(self.decoder in (None, *DECODERS), f"decoder must be one of {', '.join(DECODERS)}, got {self.decoder!r}")
        self._check_sections()
        check_data(self.data, self.image_size, self.files)
        check_choice("topology", self.topology, TOPOLOGIES)
        for name in ("levels", "epochs", "batch_size"):
            _require(getattr(self, name) >= 1, f"{name} must be at least 1, got {getattr(self, name)}")
        _require(0 < self.lr < math.inf, f"lr must be positive and finite, got {self.lr}")
        _require(self.seed >= 0, f"seed must not be negative, got {self.seed}")
        _require(self.codebook_dim is None or self.codebook_dim >= 1, f"codebook_dim must be at least 1, got {self.codebook_dim}")
        if isinstance(self.codebook_size, list):
            _require(
                len(self.codebook_size) == self.levels,
                f"codebook_size lists {len(self.codebook_size)} levels, but levels is {self.levels}",
            )
        sizes = self.codebook_size if isinstance(self.codebook_size, list) else [self.codebook_size]
        _require(min(sizes) >= 1, f"codebook_size must be at least 1 at every level, got {self.codebook_size}")
        numbers = sum(self.codebook_sizes) * self.tokenizer_config()["latent_dim"]
        _require(numbers <= MAX_CODEBOOK_NUMBERS, f"the codebooks hold {numbers:,} numbers, more than the {MAX_CODEBOOK_NUMBERS:,} allowed")
        _require(self.quantizer != "none" or self.levels == 1, "quantizer none has no levels: leave levels at 1")
        _require(self.quantizer != "none" or not self.codebook, "quantizer none has no codebook settings")

        if self.quantizer != "none":
            self._check_kind(CODEBOOKS[self.quantizer])

    def _check_kind(self, kind: type[Codebook]) -> None:
        _require(
            self.levels == 1 or kind.stackable,
            f"quantizer {self.quantizer} has one level: its codes have one fixed scale, and a second level would find nothing to quantize",
        )
        for size in self.codebook_sizes:
            try:
                kind.default_dim(size)
            except ValueError as error:
                raise VqlabError(str(error)) from error

    @property
    def latent_dim(self) -> int:
        """Dimension of the codes: `codebook_dim`, or the quantizer's own."""
        if self.codebook_dim is not None:
            return self.codebook_dim
        kind = Codebook if self.quantizer == "none" else CODEBOOKS[self.quantizer]
        return kind.default_dim(max(self.codebook_sizes, default=1))

    def _check_sections(self) -> None:
        """Settings of a backbone that is not chosen are refused, since they would have no effect."""
        chosen = {backbone_kind(self.encoder), self.decoder_name}
        for name in ("conv", "timm", "titok", "vit"):
            section = getattr(self, name)
            changed = [f.name for f in dataclasses.fields(section) if getattr(section, f.name) != getattr(type(section)(), f.name)]
            used = name in chosen
            if name == "conv" and self.encoder != "conv":  # the decoder alone, which upsamples as often as the encoder needs
                used = used and "downsamplings" not in changed
            _require(
                used or not changed,
                f"{name}.{changed[0] if changed else ''} is set, but encoder is {self.encoder} and decoder {self.decoder_name}: "
                "it would have no effect",
            )

    @property
    def decoder_name(self) -> str:
        """The decoder that is chosen or goes with the encoder."""
        return self.decoder or ("titok" if self.encoder == "titok" else "conv")

    @property
    def codebook_sizes(self) -> list[int]:
        """Codes of each level; empty for quantizer none."""
        if self.quantizer == "none":
            return []
        if isinstance(self.codebook_size, list):
            return list(self.codebook_size)
        step = 4 if self.topology == "cascade" else 1
        return [max(1, self.codebook_size // step**level) for level in range(self.levels)]

    def tokenizer_config(self) -> dict[str, Any]:
        """The configuration of the tokenizer to train (`vqlab.Tokenizer`)."""
        levels = [{"kind": self.quantizer, "codebook_size": size, **self.codebook} for size in self.codebook_sizes]
        return {
            "channels": 3,
            "latent_dim": self.latent_dim,
            "encoder": {"name": self.encoder, **getattr(self, backbone_kind(self.encoder)).settings()},
            **self._decoder_settings(),
            "quantizer": {
                "topology": self.topology,
                "normalize": self.normalize_latents,
                "codebook_dim": self.latent_dim,
                "levels": levels,
            },
        }

    def unused(self) -> dict[str, str]:
        """Settings that this configuration leaves without effect, by dotted key, each with the reason."""
        found: dict[str, str] = {}
        soft = self.quantizer != "none" and CODEBOOKS[self.quantizer].is_soft
        if self.quantizer == "none":
            found |= dict.fromkeys(("codebook_size", "topology"), "quantizer none has no codes")
        if not soft:
            found["optim.hard_fraction"] = f"quantizer {self.quantizer} decodes its codes anyway"
        if self.levels == 1:
            found["optim.level_dropout"] = "there is one level"
        quantizer = self.tokenizer_config()["quantizer"]
        with torch.device("meta"):  # asked for what they would train, not built
            books = [build_codebook(level, quantizer["codebook_dim"]) for level in quantizer["levels"]]
        if not any(book.codebook_parameters() for book in books):
            found["optim.epsilon"] = "no codes are trained by the optimizer"
        return found

    def resolved(self) -> TrainConfig:
        """The same with every setting of the quantizer written down, so that later defaults change nothing."""
        if self.quantizer == "none":
            return self
        signature = inspect.signature(CODEBOOKS[self.quantizer])
        defaults = {name: p.default for name, p in signature.parameters.items() if p.default is not inspect.Parameter.empty}
        return dataclasses.replace(self, codebook={**defaults, **self.codebook})

    def _decoder_settings(self) -> dict[str, Any]:
        if self.decoder_name == self.encoder:
            return {}  # the encoder's counterpart
        settings = getattr(self, self.decoder_name).settings()
        if self.decoder_name == "conv":
            del settings["downsamplings"]  # as many as the encoder needs
        return {"decoder": {"name": self.decoder_name, **settings}}

    def to_dict(self) -> dict[str, Any]:
        """Plain types, with the quantizer's settings under its own name: what the configuration files look like."""
        content = dataclasses.asdict(self)
        codebook = content.pop("codebook")
        if self.quantizer != "none":
            content[self.quantizer] = codebook
        return content

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> TrainConfig:
        """The inverse of `to_dict`; VqlabError names an unknown key, or settings of a quantizer that is not the chosen one."""
        content = dict(content)
        chosen = content.get("quantizer", cls.quantizer)
        for kind in CODEBOOKS:
            settings = content.pop(kind, None)
            if kind == chosen:
                content["codebook"] = settings or {}
            elif settings:
                raise VqlabError(f"{kind}.{next(iter(settings))} is set, but quantizer is {chosen}: it would have no effect")
        sections: dict[str, Any] = {
            "conv": ConvConfig,
            "timm": TimmConfig,
            "titok": TitokConfig,
            "vit": ViTConfig,
            "files": FilesConfig,
            "loss": LossConfig,
            "optim": OptimConfig,
            "run": RunConfig,
        }
        try:
            for name, section in sections.items():
                content[name] = section(**content.get(name) or {})
            return cls(**content)
        except (TypeError, ValueError) as error:
            raise VqlabError(f"configuration: {error}") from error


def _check_fields(config: Any, prefix: str = "") -> None:
    hints = typing.get_type_hints(type(config))
    try:
        check_types({field.name: getattr(config, field.name) for field in dataclasses.fields(config)}, hints, prefix)
    except TypeError as error:
        raise VqlabError(str(error)) from None


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise VqlabError(message)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """VqlabError unless `value` is one of the choices."""
    _require(value in choices, f"{name} must be one of {', '.join(choices)}, got {value!r}")

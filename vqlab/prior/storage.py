"""A prior on disk: its weights and configuration, the tokenizer it belongs to, the tokens it learns from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from vqlab import __version__
from vqlab.errors import VqlabError
from vqlab.prior.model import Prior
from vqlab.storage import write_atomically, write_json
from vqlab.tokenizer import Tokenizer

FORMAT_VERSION = 1


@dataclass(frozen=True)
class PriorFolder:
    """Paths below the folder of a prior."""

    path: Path

    @property
    def weights(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def tokenizer(self) -> Path:
        return self.path / "tokenizer"

    @property
    def tokens(self) -> Path:
        return self.path / "tokens.safetensors"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.ckpt"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.csv"

    def write_config(self, prior: Prior, training: dict[str, Any]) -> None:
        """What the prior is and how it is trained."""
        write_json(
            self.config, {"format_version": FORMAT_VERSION, "vqlab_version": __version__, "prior": prior.config(), "training": training}
        )

    def read_config(self) -> dict[str, Any]:
        """The content of `write_config`; VqlabError where it is missing or another software's."""
        try:
            content = json.loads(self.config.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise VqlabError(f"{self.path} is not a prior: it has no {self.config.name}") from None
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise VqlabError(f"cannot read {self.config}: {error}") from error
        if not isinstance(content, dict) or not isinstance(content.get("prior"), dict) or not isinstance(content.get("training"), dict):
            raise VqlabError(f"{self.config} is not the configuration of a prior")
        if content.get("format_version") != FORMAT_VERSION:
            raise VqlabError(f"{self.config}: format_version is {content.get('format_version')!r}, this vqlab reads {FORMAT_VERSION}")
        return content

    def write_weights(self, prior: Prior) -> None:
        write_tensors(self.weights, {name: tensor for name, tensor in prior.state_dict().items() if name != "gpt.lm_head.weight"})

    def load(self) -> tuple[Prior, Tokenizer]:
        """The trained prior and its tokenizer, both in `eval()` mode; VqlabError naming what is missing or damaged."""
        content = self.read_config()
        try:
            prior = Prior.from_config(content["prior"])
        except (KeyError, TypeError, ValueError) as error:
            raise VqlabError(f"{self.config}: {type(error).__name__}: {error}") from error
        state = read_tensors(self.weights)
        state["gpt.lm_head.weight"] = state.get("gpt.transformer.wte.weight", next(iter(state.values())))  # tied, stored once
        try:
            prior.load_state_dict(state)
        except RuntimeError as error:
            raise VqlabError(f"{self.weights} does not fit {self.config}: {str(error).splitlines()[-1].strip()}") from error
        return prior.eval(), Tokenizer.from_pretrained(self.tokenizer)


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Named tensors as safetensors, atomically."""
    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_atomically(path, lambda temporary: save_file(copies, temporary))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; VqlabError where it cannot be read."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise VqlabError(f"cannot read {path}: {error}") from error

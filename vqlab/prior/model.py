"""A small GPT-2 over sequences of ids.

A. Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, as `transformers` builds it; here with a start token per
class and without dropout.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from vqlab.optional import require
from vqlab.prior.layout import Layout


class Prior(nn.Module):
    """p(ids | class) = prod_t p(id_t | earlier ids, class).

    classes: names of the classes it is told; empty for an unconditional prior.  width, layers, heads: of the transformer.
    VqlabError where `transformers` is missing.
    """

    def __init__(self, layout: Layout, classes: tuple[str, ...], *, width: int, layers: int, heads: int) -> None:
        super().__init__()
        transformers = require("transformers", "downstream", "a prior")
        self.layout, self.classes = layout, classes
        self.settings = {"width": width, "layers": layers, "heads": heads}
        starts = max(len(classes), 1)
        config = transformers.GPT2Config(
            vocab_size=layout.vocabulary + starts,
            n_positions=layout.length,
            n_embd=width,
            n_layer=layers,
            n_head=heads,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=None,
            eos_token_id=None,
        )
        self.gpt = transformers.GPT2LMHeadModel(config)

    @property
    def num_parameters(self) -> int:
        return sum(p.numel() for p in self.parameters())

    def start(self, labels: Tensor | None, count: int) -> Tensor:
        """Start tokens (count, 1): that of each image's class, or the only one of an unconditional prior.

        ValueError where labels (count,) are missing, not wanted, or no class.
        """
        device = next(self.parameters()).device
        if not self.classes:
            if labels is not None:
                raise ValueError("this prior is unconditional: it takes no labels")
            return torch.full((count, 1), self.layout.vocabulary, device=device)
        if labels is None:
            raise ValueError("this prior is class-conditional: it needs labels")
        if labels.shape != (count,) or (count and (int(labels.min()) < 0 or int(labels.max()) >= len(self.classes))):
            raise ValueError(f"labels must be ({count},) with values in 0..{len(self.classes) - 1}")
        return self.layout.vocabulary + labels.to(device)[:, None]

    def nats(self, ids: Tensor, labels: Tensor | None = None) -> Tensor:
        """-log p of every id, in nats: ids (b, h, w, levels) or (b, n, levels) -> (b, length), in the order of the layout."""
        sequence = self.layout.flatten(ids.to(next(self.parameters()).device))
        inputs = torch.cat([self.start(labels, len(ids)), sequence[:, :-1]], 1)
        hidden = self.gpt.transformer(inputs, use_cache=False).last_hidden_state
        parts = []
        hidden_by_level = hidden.split(self.layout.places_by_level, 1)
        for level, (states, shifted) in enumerate(zip(hidden_by_level, self.layout.by_level(sequence), strict=True)):
            logits = self.logits(states, level)
            targets = shifted - self.layout.span(level)[0]
            parts.append(nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none"))
        return torch.cat(parts, 1)

    def new_cache(self) -> Any:
        """An empty store for the keys and values of earlier tokens, which `advance` fills."""
        return require("transformers", "downstream", "a prior").DynamicCache()

    def advance(self, latest: Tensor, cache: Any) -> Tensor:
        """The transformer's output after the tokens `latest` (b, 1), given those before them in `cache`: (b, width)."""
        # By place: what the argument is called depends on the version of transformers.
        return self.gpt.transformer(latest, cache, use_cache=True).last_hidden_state[:, -1]

    def logits(self, hidden: Tensor, level: int) -> Tensor:
        """Scores of the ids of one level (0-based), float32: (..., width) -> (..., K_level)."""
        start, end = self.layout.span(level)
        return nn.functional.linear(hidden, self.gpt.lm_head.weight[start:end]).float()

    def config(self) -> dict[str, Any]:
        """What builds this prior again: plain JSON types."""
        layout = self.layout
        return {
            "grid": [layout.height, layout.width],
            "codebook_sizes": list(layout.codebook_sizes),
            "skipped_levels": layout.skipped,
            "pyramid": layout.pyramid,
            "sequential": layout.sequential,
            "classes": list(self.classes),
            **self.settings,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Prior:
        """A fresh prior from `config()`."""
        height, width = config["grid"]
        kind = {name: bool(config.get(name, False)) for name in ("pyramid", "sequential")}
        layout = Layout(height, width, tuple(config["codebook_sizes"]), config["skipped_levels"], **kind)
        return cls(layout, tuple(config["classes"]), width=config["width"], layers=config["layers"], heads=config["heads"])


def bits(nats: Tensor) -> Tensor:
    """Nats to bits."""
    return nats / math.log(2)

"""Drawing ids, and images, from a prior."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from vqlab.errors import VqlabError
from vqlab.prior.model import Prior
from vqlab.progress import progress
from vqlab.tokenizer import Tokenizer


@torch.no_grad()
def sample_ids(
    prior: Prior,
    labels: Tensor | None,
    count: int,
    *,
    generator: Generator,
    temperature: float = 1.0,
    top_k: int = 0,
) -> Tensor:
    """Draw ids id by id, with the keys and values of earlier ones kept: (count, h, w, levels) int64, or (count, n, levels).

    labels: (count,) for a class-conditional prior, None for an unconditional one.  generator: of the CPU; the same state gives the same
    ids.  temperature: divides the scores, 0 takes the likeliest id.  top_k: draw from the k likeliest ids only, 0 for all.
    VqlabError for a negative temperature or top_k; ValueError for labels that do not fit the prior.
    """
    if not 0 <= temperature < float("inf"):
        raise VqlabError(f"temperature must be finite and not negative, got {temperature}")
    if top_k < 0:
        raise VqlabError(f"top_k must not be negative, got {top_k}")
    layout = prior.layout
    latest, cache, drawn = prior.start(labels, count), prior.new_cache(), []
    for position in progress(range(layout.length), "sample", "id", total=layout.length):
        level = layout.level_of(position)
        scores = prior.logits(prior.advance(latest, cache), level).cpu()
        latest = (layout.span(level)[0] + _draw(scores, generator, temperature, top_k)).to(latest.device)
        drawn.append(latest)
    return layout.unflatten(torch.cat(drawn, 1))


def _draw(scores: Tensor, generator: Generator, temperature: float, top_k: int) -> Tensor:
    """One id from each row of scores: (b, k) -> (b, 1)."""
    if temperature == 0:
        return scores.argmax(1, keepdim=True)
    if 0 < top_k < scores.shape[1]:
        worst_kept = scores.topk(top_k, 1).values[:, -1:]
        scores = scores.masked_fill(scores < worst_kept, -torch.inf)
    return torch.multinomial(torch.softmax(scores / temperature, 1), 1, generator=generator)


def sample_images(
    prior: Prior, tokenizer: Tokenizer, count: int, *, seed: int = 0, temperature: float = 1.0, top_k: int = 0, batch_size: int = 250
) -> tuple[Tensor, Tensor | None]:
    """`count` images, the classes in turn: float (count, c, h, w) in [0, 1], and their labels (None without classes)."""
    if count < 1:
        raise VqlabError(f"the number of images must be at least 1, got {count}")
    labels = torch.arange(count) % len(prior.classes) if prior.classes else None
    generator = Generator().manual_seed(seed)
    images = []
    for start in range(0, count, batch_size):
        part = None if labels is None else labels[start : start + batch_size]
        size = min(batch_size, count - start)
        ids = sample_ids(prior, part, size, generator=generator, temperature=temperature, top_k=top_k)
        images.append(tokenizer.decode_indices(ids).cpu())
    return torch.cat(images), labels

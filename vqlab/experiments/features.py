"""Hidden states of a frozen encoder, computed once and kept on disk: ragged, without padding, float16."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm

from vqlab.data.text import TextSplit
from vqlab.errors import VqlabError
from vqlab.experiments.encoders import TextEncoder
from vqlab.storage import write_atomically


@dataclass(frozen=True)
class TokenBatch:
    """Sequences padded to a common length. tokens: (b, n, dim) float32, 0 at padding.  mask: (b, n) bool, True at real tokens.
    labels: (b,) int64.  which: (b,) int64, positions in the split."""

    tokens: Tensor
    mask: Tensor
    labels: Tensor
    which: Tensor


@dataclass(frozen=True)
class TokenFeatures:
    """Tokens of m sequences, one after the other without padding.

    states: (N, dim) float16.  ids: (N,) int32, vocabulary ids (or any other name of a token).  offsets: (m + 1,) int64; sequence i has
    the tokens offsets[i] .. offsets[i+1] - 1.  labels: (m,) int64.
    """

    states: Tensor
    ids: Tensor
    offsets: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return self.labels.numel()

    @property
    def dim(self) -> int:
        return self.states.shape[1]

    @property
    def lengths(self) -> Tensor:
        """Tokens of each sequence, (m,) int64."""
        return self.offsets.diff()

    def batch(self, which: Tensor) -> TokenBatch:
        """The sequences `which` (b,), padded on the right to the longest of them."""
        pieces = [self.states[self.offsets[i] : self.offsets[i + 1]] for i in which.tolist()]
        tokens = torch.nn.utils.rnn.pad_sequence(pieces, batch_first=True).float()
        mask = torch.arange(tokens.shape[1]) < self.lengths[which, None]
        return TokenBatch(tokens, mask, self.labels[which], which)

    def batches(self, size: int, generator: torch.Generator | None = None) -> Iterator[TokenBatch]:
        """All sequences in batches of similar length, which saves padding; with a generator in random order."""
        noise = torch.rand(len(self), generator=generator) if generator is not None else torch.zeros(len(self))
        order = (self.lengths.float() * (1 + 0.2 * noise)).argsort(stable=True)
        groups = list(order.split(size))
        turn = torch.randperm(len(groups), generator=generator).tolist() if generator is not None else range(len(groups))
        for group in turn:
            yield self.batch(groups[group])

    def subset(self, which: Tensor) -> TokenFeatures:
        """The sequences `which` (b,) alone."""
        rows = torch.cat([torch.arange(int(self.offsets[i]), int(self.offsets[i + 1])) for i in which.tolist()])
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), self.lengths[which].cumsum(0)])
        return TokenFeatures(self.states[rows], self.ids[rows], offsets, self.labels[which])


def extract(encoder: TextEncoder, split: TextSplit, max_tokens: int, batch_tokens: int = 4096) -> TokenFeatures:
    """Hidden states of every text, in batches of similar length of about `batch_tokens` tokens."""
    lengths = np.array([len(text) for text in split.texts])
    order = np.argsort(lengths, kind="stable")
    states: list[Tensor] = [torch.empty(0)] * len(split)
    ids: list[Tensor] = [torch.empty(0)] * len(split)
    start = 0
    with tqdm(total=len(split), desc=f"encode with {encoder.name.split(' ')[0]}", unit="text", leave=False) as bar:
        while start < len(order):
            # Characters overestimate tokens, so batches of short texts are merely a little smaller than they could be.
            longest = min(max_tokens, max(8, int(lengths[order[min(start + 64, len(order) - 1)]]) // 3))
            chosen = order[start : start + max(1, batch_tokens // longest)]
            out = encoder.encode([split.texts[i] for i in chosen], max_tokens)
            for row, i in enumerate(chosen.tolist()):
                states[i] = out.states[row][out.mask[row]].half()
                ids[i] = out.ids[row][out.mask[row]].int()
            start += len(chosen)
            bar.update(len(chosen))
    counts = torch.tensor([len(piece) for piece in ids], dtype=torch.int64)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    return TokenFeatures(torch.cat(states), torch.cat(ids), offsets, torch.from_numpy(split.labels))


def cached_features(encoder: TextEncoder, split: TextSplit, max_tokens: int, cache: Path, name: str) -> TokenFeatures:
    """`extract`, kept in `cache` under a name that holds the encoder's weights, the texts and the limit; others are computed anew."""
    path = cache / f"{name}-{_fingerprint(encoder, split.texts, max_tokens)}.safetensors"
    if path.is_file():
        try:
            return replace(TokenFeatures(**load_file(path)), labels=torch.from_numpy(split.labels))
        except (SafetensorError, TypeError) as error:
            raise VqlabError(f"cannot read {path}: {error}; delete it to have it made anew") from error
    features = extract(encoder, split, max_tokens)
    write_atomically(path, lambda temporary: save_file(vars(features), temporary))
    return features


def _fingerprint(encoder: TextEncoder, texts: Sequence[str], max_tokens: int) -> str:
    digest = hashlib.sha256(f"{max_tokens}".encode())
    for parameter in encoder.model.parameters():
        digest.update(parameter.flatten()[:64].float().numpy().tobytes())
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()[:12]

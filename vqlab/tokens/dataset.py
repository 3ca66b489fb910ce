"""Token files as a torch data set."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from vqlab.errors import VqlabError
from vqlab.storage import file_sha256
from vqlab.tokenizer import Tokenizer
from vqlab.tokens.index import TokenIndex
from vqlab.tokens.shard import TokenShard

#: Shards that are open at a time.
OPEN_SHARDS = 64


class LabelledTokens(NamedTuple):
    """ids: (h', w', levels) int64, or (n, levels) of a sequence.  label: 0..len(classes)-1."""

    ids: Tensor
    label: int


class TokenDataset(Dataset[Any]):
    """Ids of a folder that `vqlab encode` wrote: item i is (h', w', levels) int64, (n, levels) where tokens are a sequence, or
    LabelledTokens where labels is True.

    Shards are mapped into memory when an item of theirs is asked for; only what is asked for is read. It may be handed to the worker
    processes of a DataLoader. verify: compare each shard with its SHA-256 when it is opened, which reads it as a whole. Raises VqlabError
    for a folder without tokens, a damaged index or, when it is reached, a damaged shard, and for labels that are not there.
    """

    def __init__(self, folder: str | Path, *, labels: bool = False, verify: bool = False) -> None:
        self.folder = Path(folder)
        self.index = TokenIndex.read(self.folder)
        if labels and self.index.plan.classes is None:
            raise VqlabError(f"{folder} holds no labels: its images came without classes")
        self._with_labels, self._verify = labels, verify
        self._ends = list(accumulate(shard.images for shard in self.index.shards))
        self._open: OrderedDict[int, TokenShard] = OrderedDict()

    @property
    def fingerprint(self) -> str:
        """Of the tokenizer that wrote the ids."""
        return self.index.plan.fingerprint

    @property
    def codebook_sizes(self) -> tuple[int, ...]:
        """Codes of each level."""
        return self.index.plan.codebook_sizes

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the labels, None without labels."""
        return self.index.plan.classes

    @property
    def grid(self) -> tuple[int, ...] | None:
        """(h', w'), or (n,) of a sequence, where all images have the same, else None."""
        grid = self.index.grid
        return grid[1:] if grid is not None and self.index.plan.sequence else grid

    def __len__(self) -> int:
        return self.index.images

    def __getitem__(self, i: int) -> Tensor | LabelledTokens:
        shard, place = self._find(i)
        if not self._with_labels:
            return shard.ids(place)
        assert shard.labels is not None
        return LabelledTokens(shard.ids(place), int(shard.labels[place]))

    def name(self, i: int) -> str:
        """Source name of image i: a relative path."""
        shard, place = self._find(i)
        return shard.name(place)

    def shard(self, number: int) -> TokenShard:
        """Shard `number`, 0-based, open and checked."""
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number]
        shard = self._checked(number)
        self._open[number] = shard
        if len(self._open) > OPEN_SHARDS:
            self._open.popitem(last=False)
        return shard

    def tensor(self) -> Tensor:
        """All ids in memory: (images, *grid, levels) int64. VqlabError where the grids differ."""
        if self.grid is None:
            raise VqlabError(f"{self.folder}: images have different grids, which do not fit into one tensor")
        parts = [self.shard(number).all_ids() for number in range(len(self.index.shards))]
        return torch.cat(parts).view(-1, *self.grid, len(self.codebook_sizes))

    def labels(self) -> Tensor | None:
        """All labels: (n,) int64; None without labels."""
        parts = [self.shard(number).labels for number in range(len(self.index.shards))]
        return None if self.classes is None else torch.cat([part for part in parts if part is not None])

    def check(self, tokenizer: Tokenizer) -> None:
        """VqlabError unless this tokenizer wrote the ids."""
        if tokenizer.fingerprint != self.fingerprint:
            raise VqlabError(
                f"{self.folder} was written by another tokenizer: its fingerprint is {self.fingerprint[:16]}..., "
                f"this tokenizer's is {tokenizer.fingerprint[:16]}..."
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}  # each process opens its own

    def _find(self, i: int) -> tuple[TokenShard, int]:
        if not -len(self) <= i < len(self):
            raise IndexError(f"there are {len(self)} images, got {i}")
        i %= len(self)
        number = bisect_right(self._ends, i)
        return self.shard(number), i - (self._ends[number - 1] if number else 0)

    def _checked(self, number: int) -> TokenShard:
        entry, plan = self.index.shards[number], self.index.plan
        path = self.folder / entry.file
        try:
            size = path.stat().st_size
        except OSError as error:
            raise VqlabError(f"cannot read {path}: {error.strerror}") from error
        if size != entry.bytes:
            raise VqlabError(f"{path} is damaged: it has {size:,} bytes, the index says {entry.bytes:,}")
        if self._verify and file_sha256(path) != entry.sha256:
            raise VqlabError(f"{path} is damaged: its SHA-256 is not the one of the index")
        shard = TokenShard.open(path)
        expected = (number, plan.fingerprint, plan.codebook_sizes, plan.sequence, entry.images, entry.tokens)
        if (shard.number, shard.fingerprint, shard.codebook_sizes, shard.sequence, len(shard), shard.tokens) != expected:
            raise VqlabError(f"{path} does not belong to this index: its number, tokenizer or size is another")
        if (shard.labels is None) != (plan.classes is None):
            raise VqlabError(f"{path} does not belong to this index: one has labels, the other has none")
        if shard.labels is not None and plan.classes is not None and len(shard) and int(shard.labels.max()) >= len(plan.classes):
            raise VqlabError(f"{path} is damaged: label {int(shard.labels.max())} of {len(plan.classes)} classes")
        if self.index.grid is not None and bool((shard.grids != torch.tensor(self.index.grid)).any()):
            raise VqlabError(f"{path} does not belong to this index: its grids are others")
        return shard

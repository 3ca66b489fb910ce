"""Batches of images, resumable at any batch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from torch import Tensor

from vqlab.data.ahead import run_ahead
from vqlab.data.arrays import Split
from vqlab.data.order import AUGMENT_STREAM, batch_sizes, epoch_order, seeded_generator
from vqlab.errors import VqlabError


class ImageBatch(NamedTuple):
    """images: uint8 (b, 3, h, w). labels: int64 (b,)."""

    images: Tensor
    labels: Tensor


class BatchLoader:
    """Iterable over the batches of one epoch after the other.

    The order depends on (seed, epoch) only, the augmentation of a batch on (seed, epoch, batch number, rank)
    only; the global random state is neither read nor changed. Without drop_last each image comes exactly
    once an epoch over all ranks. All ranks have the same number of batches.

    The state is the place of the next batch, {"epoch": e, "batch": b}. It moves on when a batch is handed
    out, so that after the last batch it is already {"epoch": e + 1, "batch": 0}. A new iterator starts at
    the state. If the last pass was left in the middle (a `break`, a limit on the number of batches) and no
    state was loaded since, it starts with the next epoch instead, so that no image is skipped unnoticed.

    Raises VqlabError for contradictory sizes, and for a state that does not belong to this loader.
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        *,
        shuffle: bool,
        augment: bool,
        seed: int,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if batch_size < 1:
            raise VqlabError(f"batch_size must be at least 1, got {batch_size}")
        if seed < 0:
            raise VqlabError(f"seed must not be negative, got {seed}")
        if not 0 <= rank < world_size:
            raise VqlabError(f"rank must be in 0..{world_size - 1}, got {rank}")
        if len(split) == 0:
            raise VqlabError("there are no images to make batches of")
        self.split = split
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.augment = augment
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self._sizes = batch_sizes(len(split), batch_size, rank, world_size, drop_last)
        self._epoch = 0
        self._batch = 0
        self._left_in_the_middle = False

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank, wherever the state is."""
        return len(self._sizes)

    def __iter__(self) -> Iterator[ImageBatch]:
        if self._left_in_the_middle:
            self._epoch, self._batch = self._epoch + 1, 0
            self._left_in_the_middle = False
        return self._batches(self._epoch, self._batch)

    def _batches(self, epoch: int, first: int) -> Iterator[ImageBatch]:
        order = epoch_order(len(self.split), self.seed, epoch, self.shuffle)[self.rank :: self.world_size]
        ends = list(accumulate(self._sizes))
        jobs = [
            partial(self._batch_at, epoch, number, order[ends[number] - self._sizes[number] : ends[number]])
            for number in range(first, len(ends))
        ]
        for number, batch in enumerate(run_ahead(jobs, self.split.ahead), first):
            last = number + 1 == len(ends)
            self._epoch, self._batch = (epoch + 1, 0) if last else (epoch, number + 1)
            self._left_in_the_middle = not last
            yield batch

    def _batch_at(self, epoch: int, number: int, chosen: Tensor) -> ImageBatch:
        if self.augment:
            generator = seeded_generator(AUGMENT_STREAM, self.seed, epoch, number, self.rank)
            images = self.split.augmented(chosen, generator)
        else:
            images = self.split.plain(chosen)
        return ImageBatch(images, self.split.labels[chosen])

    def state_dict(self) -> dict[str, int]:
        """The place of the next batch: {"epoch": 0.., "batch": 0..len-1}."""
        return {"epoch": self._epoch, "batch": self._batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next iterator start at `state`; VqlabError where there is no such batch."""
        try:
            epoch, batch = int(state["epoch"]), int(state["batch"])
        except (KeyError, TypeError, ValueError) as error:
            raise VqlabError(f"not the state of a batch loader: {state!r}") from error
        if epoch < 0 or not 0 <= batch < len(self):
            raise VqlabError(f"no batch {batch} of epoch {epoch}: this loader has {len(self)} an epoch")
        self._epoch, self._batch = epoch, batch
        self._left_in_the_middle = False

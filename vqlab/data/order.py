"""Which image comes when: a pure function of (seed, epoch), shared out to the ranks."""

from __future__ import annotations

import numpy as np
import torch
from torch import Generator, Tensor

from vqlab.errors import VqlabError

ORDER_STREAM = 0
AUGMENT_STREAM = 1


def seeded_generator(*key: int) -> Generator:
    """A CPU generator whose numbers depend on the non-negative integers in `key` and nothing else."""
    # SeedSequence mixes the key, so that neighbouring seeds, epochs and batches are unrelated.
    seed = int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])
    return Generator().manual_seed(seed)


def epoch_order(count: int, seed: int, epoch: int, shuffle: bool) -> Tensor:
    """The images of one epoch in their order over all ranks: a permutation of 0..count-1, int64 (count,)."""
    if not shuffle:
        return torch.arange(count)
    return torch.randperm(count, generator=seeded_generator(ORDER_STREAM, seed, epoch))


def batch_sizes(count: int, batch_size: int, rank: int, world_size: int, drop_last: bool) -> tuple[int, ...]:
    """Sizes of the batches of one rank; the number of batches is the same on all ranks.

    Rank r owns the places r, r + world_size, ... of the order, so that batch b of all ranks together is
    the b-th stretch of batch_size * world_size images. Without drop_last the last batch is what is left;
    a rank for which nothing is left moves one image there from the batch before, as a rank without a batch
    would leave the others waiting.
    Raises VqlabError where no such division exists.
    """
    if drop_last:
        full = count // (batch_size * world_size)
        if full == 0:
            raise VqlabError(
                f"{count} images do not fill one batch of {batch_size} on each of {world_size} processes: "
                "use a smaller batch size or keep the last batch"
            )
        return (batch_size,) * full
    if count < world_size:
        raise VqlabError(f"{count} images cannot be shared out to {world_size} processes")
    if batch_size == 1 and count % world_size:  # refused on all ranks alike, or some would wait for ever
        raise VqlabError(
            f"{count} images cannot be shared out one by one to {world_size} processes in equally many "
            "batches: use a larger batch size or drop the last batch"
        )
    own = len(range(rank, count, world_size))
    batches = -(-len(range(0, count, world_size)) // batch_size)  # rank 0 owns the most
    sizes = [batch_size] * (batches - 1) + [own - (batches - 1) * batch_size]
    if sizes[-1] == 0:
        sizes[-2:] = [batch_size - 1, 1]
    return tuple(sizes)

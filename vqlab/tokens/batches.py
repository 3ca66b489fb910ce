"""Batches of images of one size from images of any size, in an order that depends on the images alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from torch import Tensor

#: Images that wait for others of their size take at most so many bytes.
WAITING_BYTES = 256 * 2**20
#: Pixels of a batch, unless one image alone has more.
BATCH_PIXELS = 2**22


@dataclass
class Batch:
    """Images of one size, uint8 (3, h, w) each, and their numbers."""

    numbers: list[int] = field(default_factory=list)
    images: list[Tensor] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return len(self.images) * self.images[0].numel()


def batches_of_one_size(
    pictures: Iterable[tuple[int, Tensor]], batch_size: int, *, batch_pixels: int = BATCH_PIXELS, waiting_bytes: int = WAITING_BYTES
) -> Iterator[Batch]:
    """All images in batches of up to batch_size images and, from two images on, up to batch_pixels pixels.

    A batch is handed out as soon as it is full, the largest of the rest whenever more than waiting_bytes wait, and the others at the end.
    """
    waiting: dict[tuple[int, ...], Batch] = {}
    held = 0
    for number, image in pictures:
        batch = waiting.setdefault(tuple(image.shape), Batch())
        batch.numbers.append(number)
        batch.images.append(image)
        held += image.numel()
        full = len(batch.images) >= min(batch_size, max(1, batch_pixels // (image.shape[1] * image.shape[2])))
        if full or held > waiting_bytes:
            shape = tuple(image.shape) if full else max(waiting, key=lambda shape: waiting[shape].bytes)
            ready = waiting.pop(shape)
            held -= ready.bytes
            yield ready
    yield from waiting.values()

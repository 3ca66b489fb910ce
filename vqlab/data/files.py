"""Images of any size and kind as the two splits of a data set: read, split, cropped."""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Generator, Tensor

from vqlab.data.arrays import ImageData
from vqlab.data.crop import centre_box, cut, random_box
from vqlab.data.read import ImageFileError, image_file_size, open_upright, reduced_size, to_tensor
from vqlab.data.sources import ImageSource, open_source
from vqlab.errors import VqlabError

CROPS = ("random", "centre")
#: A sample that stands for a split has at most so many pixels.
SAMPLE_PIXELS = 2**24
_MIB = 2**20

T = TypeVar("T")


@dataclass(frozen=True)
class FilesConfig:
    """How your own images are read (folders, lists, shards, Hugging Face data sets).

    Args:
        crop: of training images: random (a random part, resized, mirrored half of the time) or centre (mirrored half of the time).
            Test images are always cropped to the centre.
        min_scale: smallest share of the area that a random crop takes.
        test_share: share of the images that goes into the test split, by a hash of their names; without effect where a data set is split.
        strict: stop at the first image that cannot be read, instead of leaving it out.
        memory_mb: sets that need no more MiB are decoded once, larger ones are read from their files in every epoch.
        workers: threads that read and crop; 0: none, each image is read when it is asked for.
    """

    crop: str = "random"
    min_scale: float = 0.25
    test_share: float = 0.1
    strict: bool = False
    memory_mb: int = 2048
    workers: int = 2

    def __post_init__(self) -> None:
        if self.crop not in CROPS:
            raise VqlabError(f"files.crop must be one of {', '.join(CROPS)}, got {self.crop!r}")
        if not 0 < self.min_scale <= 1:
            raise VqlabError(f"files.min_scale must lie in (0, 1], got {self.min_scale}")
        if not 0 < self.test_share < 1:
            raise VqlabError(f"files.test_share must lie between 0 and 1, got {self.test_share}")
        if self.memory_mb < 0:
            raise VqlabError(f"files.memory_mb must not be negative, got {self.memory_mb}")
        if self.workers < 0:
            raise VqlabError(f"files.workers must not be negative, got {self.workers}")


def load_files(data: str, size: tuple[int, int], config: FilesConfig) -> ImageData:
    """The images of a source (`open_source`), split and cropped to `size` (h, w).

    Every image's header is read at once, and every image where the set fits into config.memory_mb. What cannot be read is left out and
    listed in `skipped`. Raises VqlabError where nothing can be read, and ImageFileError for the first such file where config.strict.
    """
    source = open_source(data)
    shorter_side = math.ceil(max(size) / math.sqrt(config.min_scale)) if config.crop == "random" else max(size)
    pictures = Pictures(source, shorter_side, config)
    readable = pictures.scan()
    if not readable:
        name, reason = next(iter(pictures.skipped.items()))
        raise VqlabError(f"{data}: none of {len(source)} images can be read; the first: {reason or name}")
    if len(readable) == 1:
        raise VqlabError(f"{data}: one image cannot be split into training and test images")
    kinds = [source.given_split[i] for i in readable] if source.given_split else hash_split([source.names[i] for i in readable], config)
    classes = sorted({source.class_names[i] for i in readable})
    places = {kind: [i for i, k in zip(readable, kinds, strict=True) if k == kind] for kind in ("train", "test")}
    for kind, chosen in places.items():
        if not chosen:
            raise VqlabError(f"{data}: none of the images of its {kind} split can be read")
    splits = {
        kind: FileSplit(pictures, chosen, torch.tensor([classes.index(source.class_names[i]) for i in chosen]), size, config)
        for kind, chosen in places.items()
    }
    listing = "\n".join(f"{kind} {source.names[i]}" for kind, chosen in places.items() for i in chosen)
    return ImageData(
        name=Path(data).name,
        train=splits["train"],
        test=splits["test"],
        classes=tuple(classes),
        skipped=pictures.skipped,
        fingerprint=hashlib.sha256(listing.encode()).hexdigest(),
    )


def hash_split(names: Sequence[str], config: FilesConfig) -> list[str]:
    """Train or test for each name, by its SHA-256 alone: adding images moves none of the others.

    Where one side would be empty, the name closest to it moves there.
    """
    hashes = [int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64 for name in names]
    kinds = ["test" if value < config.test_share else "train" for value in hashes]
    if "test" not in kinds:
        kinds[hashes.index(min(hashes))] = "test"
    elif "train" not in kinds:
        kinds[hashes.index(max(hashes))] = "train"
    return kinds


class Pictures:
    """Decoded images of a source by their number, from memory or from their files.

    shorter_side: larger images are reduced to it, the same whether they are kept or not.
    """

    def __init__(self, source: ImageSource, shorter_side: int, config: FilesConfig) -> None:
        self.source, self.shorter_side, self.config = source, shorter_side, config
        #: Name -> reason, of every image that could not be read so far.
        self.skipped: dict[str, str] = {}
        self._kept: dict[int, Tensor] = {}

    def scan(self) -> list[int]:
        """Numbers of the images that can be read; decodes and keeps all of them if they fit into the memory that is allowed."""
        sizes = self._each(range(len(self.source)), self._size)
        numbers = [i for i, size in enumerate(sizes) if size is not None]
        reduced = [reduced_size(h, w, self.shorter_side) for h, w in filter(None, sizes)]
        if sum(3 * h * w for h, w in reduced) > self.config.memory_mb * _MIB:
            return numbers
        images = self._each(numbers, self._read)
        self._kept = {i: image for i, image in zip(numbers, images, strict=True) if image is not None}
        return list(self._kept)

    @property
    def in_memory(self) -> bool:
        return bool(self._kept)

    def get(self, number: int) -> Tensor | None:
        """Image `number`, uint8 (3, h, w); None, with an entry in `skipped`, where it cannot be read (ImageFileError if strict)."""
        return self._kept[number] if self._kept else self._read(number)

    def _each(self, numbers: Sequence[int], work: Callable[[int], T]) -> list[T]:
        if not self.config.workers:
            return [work(number) for number in numbers]
        with ThreadPoolExecutor(self.config.workers, thread_name_prefix="read") as pool:
            return list(pool.map(work, numbers))

    def _size(self, number: int) -> tuple[int, int] | None:
        return self._try(number, image_file_size)

    def _read(self, number: int) -> Tensor | None:
        return self._try(number, lambda file, name: to_tensor(open_upright(file, name, shorter_side=self.shorter_side)))

    def _try(self, number: int, work: Callable[[Path | io.BytesIO, str], T]) -> T | None:
        name = self.source.names[number]
        try:
            content = self.source.content(number)
            if isinstance(content, Path):
                return work(content, str(content))
            return work(io.BytesIO(content), name)
        except (ImageFileError, OSError) as error:
            if self.config.strict:
                raise
            self.skipped[name] = str(error)
            return None


class FileSplit:
    """Images of one split, cropped to one size when they are asked for.

    pictures: where they come from.  numbers: which of them belong to the split.  labels: int64 (n,).  size: (h, w) of the results.
    """

    def __init__(self, pictures: Pictures, numbers: list[int], labels: Tensor, size: tuple[int, int], config: FilesConfig) -> None:
        self.pictures, self.numbers, self.labels, self.image_size, self.config = pictures, numbers, labels, size, config
        self.ahead = 2 if config.workers else 0
        self._map: Callable[..., Iterable[Tensor]] = (
            ThreadPoolExecutor(config.workers, thread_name_prefix="crop").map if config.workers else map
        )

    def __len__(self) -> int:
        return len(self.numbers)

    def plain(self, chosen: Tensor) -> Tensor:
        return torch.stack(list(self._map(self._centre, chosen.tolist())))

    def augmented(self, chosen: Tensor, generator: Generator) -> Tensor:
        # All random numbers are drawn here, equally many for each image, so that threads change nothing.
        draws = torch.rand(len(chosen), 5, generator=generator)
        crop = self._random if self.config.crop == "random" else self._centre
        images = torch.stack(list(self._map(crop, chosen.tolist(), draws[:, 1:].tolist())))
        return torch.where((draws[:, 0] < 0.5)[:, None, None, None], images.flip(3), images)

    def sample(self, count: int) -> Tensor:
        """Evenly spaced over the split, as neighbours in a folder look alike; at most SAMPLE_PIXELS pixels."""
        most = max(1, SAMPLE_PIXELS // (self.image_size[0] * self.image_size[1]))
        count = min(count, most, len(self))
        return self.plain(torch.arange(count) * len(self) // count)

    def _centre(self, place: int, draws: Sequence[float] = ()) -> Tensor:
        image = self._image(place)
        return cut(image, centre_box(image.shape[1], image.shape[2], self.image_size), self.image_size)

    def _random(self, place: int, draws: Sequence[float]) -> Tensor:
        image = self._image(place)
        return cut(image, random_box(image.shape[1], image.shape[2], self.image_size, self.config.min_scale, draws), self.image_size)

    def _image(self, place: int) -> Tensor:
        """The image at a place, or the next one that can be read: a file may turn out to be damaged when it is decoded."""
        for number in (*self.numbers[place:], *self.numbers[:place]):
            image = self.pictures.get(number)
            if image is not None:
                return image
        raise VqlabError("no image of the split can be read any more")

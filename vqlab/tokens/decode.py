"""Token files back to images: PNG files under their source names."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath

import torch
from PIL import Image
from torch import Tensor

from vqlab.errors import VqlabError
from vqlab.tokenizer import Tokenizer
from vqlab.tokens.batches import BATCH_PIXELS
from vqlab.tokens.dataset import TokenDataset
from vqlab.tokens.shard import TokenShard


@dataclass(frozen=True)
class DecodeReport:
    """images: files written by this process.  seconds: spent on decoding and writing."""

    images: int
    seconds: float


def image_name(name: str) -> PurePosixPath:
    """The relative path that an image is written to: its source name, as a PNG.

    VqlabError for a name that leads out of the folder that images are written to, whatever the system.
    """
    parts = name.replace("\\", "/").split("/")
    if not name or "\0" in name or ":" in parts[0] or any(part in ("", ".", "..") for part in parts) or name.startswith("~"):
        raise VqlabError(f"the source name {name[:80]!r} leads out of the folder of images: the tokens are damaged or not to be trusted")
    return PurePosixPath(name if name.lower().endswith(".png") else f"{name}.png")


def decode_tokens(
    tokenizer: Tokenizer,
    tokens: TokenDataset,
    out: Path,
    *,
    batch_size: int = 256,
    workers: int = 2,
    overwrite: bool = False,
    rank: int = 0,
    world_size: int = 1,
    advance: Callable[[int], object] = lambda images: None,
) -> DecodeReport:
    """Decode all tokens into PNG files below `out`; shards are dealt to `world_size` processes.

    Raises VqlabError for tokens of another tokenizer, a source name that leads out of `out`, and, unless `overwrite`, a file that is there
    already. A damaged shard ends it before one of the shard's images is written.
    """
    tokens.check(tokenizer)
    if out.exists() and not out.is_dir():
        raise VqlabError(f"{out} is a file, not a folder")
    started, count = time.perf_counter(), 0
    with ThreadPoolExecutor(workers, thread_name_prefix="write") as pool:
        waiting: deque[Future[None]] = deque()
        for number in range(rank, len(tokens.index.shards), world_size):
            shard = tokens.shard(number)
            paths = [out / image_name(shard.name(i)) for i in range(len(shard))]
            _prepare(paths, overwrite)
            for places, ids, size in _batches(shard, batch_size, _pixels_per_token(tokenizer)):
                try:
                    decoded = tokenizer.decode_indices(ids, size)
                except ValueError as error:
                    raise VqlabError(f"{shard.path} is damaged: {error}") from error
                images = decoded.mul(255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu()
                waiting.extend(pool.submit(_write, paths[i], image) for i, image in zip(places, images, strict=True))
                while len(waiting) > 2 * batch_size:
                    waiting.popleft().result()
                count += len(places)
                advance(len(places))
        while waiting:
            waiting.popleft().result()
    return DecodeReport(count, time.perf_counter() - started)


def _prepare(paths: Sequence[Path], overwrite: bool) -> None:
    """Folders for the images of a shard; VqlabError where two have one path, or where one is there already."""
    if len(set(paths)) < len(paths):
        twice = sorted(paths)[next(i for i, (a, b) in enumerate(pairwise(sorted(paths))) if a == b)]
        raise VqlabError(f"two images of the tokens would be written to {twice}")
    for path in paths:
        if not overwrite and path.exists():
            raise VqlabError(f"{path} is there already: choose another folder, or --overwrite")
    for folder in {path.parent for path in paths}:
        folder.mkdir(parents=True, exist_ok=True)


def _pixels_per_token(tokenizer: Tokenizer) -> int:
    """Pixels that are decoded for each token, about."""
    if not tokenizer.quantizes_sequences:
        return tokenizer.factor**2
    height, width = tokenizer.padded_size(1, 1)
    return -(-height * width // math.prod(tokenizer.token_grid(1, 1)))


def _batches(shard: TokenShard, batch_size: int, pixels_per_token: int) -> Iterator[tuple[range, Tensor, tuple[int, int] | None]]:
    """Successive images of one grid and size: their places, ids (b, h', w', levels) or (b, n, levels), and size."""
    shard.all_ids()  # checks all of them before the first image is written
    start = 0
    while start < len(shard):
        h, w = shard.grids[start].tolist()
        most = min(batch_size, max(1, BATCH_PIXELS // (h * w * pixels_per_token)))
        end = start + 1
        size = shard.size(start)
        while end < min(len(shard), start + most) and shard.grids[end].tolist() == [h, w] and shard.size(end) == size:
            end += 1
        yield range(start, end), torch.stack([shard.ids(i) for i in range(start, end)]), size
        start = end


def _write(path: Path, pixels: Tensor) -> None:
    """A PNG file, whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    array = pixels.numpy()
    Image.fromarray(array[..., 0] if array.shape[2] == 1 else array).save(temporary, "PNG")
    os.replace(temporary, path)

"""Images to token files: read ahead in threads, encoded in batches of one size, written shard by shard.

What a shard holds depends on the plan alone, not on what was done before or elsewhere: an encoding that was interrupted, or split over
processes, gives the same bytes as one that went through in one go.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from vqlab.errors import VqlabError
from vqlab.storage import file_sha256, write_json
from vqlab.tokenizer import Tokenizer
from vqlab.tokens.ahead import read_ahead
from vqlab.tokens.batches import batches_of_one_size
from vqlab.tokens.images import NamedImages
from vqlab.tokens.index import INDEX_NAME, PLAN_NAME, SKIPPED_NAME, ShardEntry, TokenIndex, TokenPlan, read_plan, shard_name
from vqlab.tokens.shard import Encoded, Skipped, TokenShard, write_shard

#: Images that were read ahead take at most so many bytes.
AHEAD_BYTES = 256 * 2**20

Advance = Callable[[int], object]


@dataclass(frozen=True)
class EncodeOptions:
    """How images are encoded.

    Args:
        batch_size: images of one size that are encoded together, fewer where they are large.
        shard_size: images per shard.
        workers: threads that read and decode image files; 0: none, each is read when it is asked for.
        strict: stop at the first image that cannot be encoded, instead of reporting it.
        bf16: autocast to bfloat16 (faster on some devices; some ids differ).
    """

    batch_size: int = 256
    shard_size: int = 5000
    workers: int = 2
    strict: bool = False
    bf16: bool = False

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("shard_size", 1), ("workers", 0)):
            if getattr(self, name) < least:
                raise VqlabError(f"{name} must be at least {least}, got {getattr(self, name)}")


@dataclass(frozen=True)
class EncodeReport:
    """What one process did.

    images: encoded by this call.  kept: shards that an earlier call had finished.  written: shards of this call.  skipped: images that
    could not be encoded, of all shards of this process.  seconds: spent on encoding.  complete: whether index.json is written, False where
    other processes still have shards to do.
    """

    images: int
    kept: int
    written: int
    skipped: tuple[Skipped, ...]
    seconds: float
    complete: bool


def encode_images(
    tokenizer: Tokenizer,
    images: NamedImages,
    out: Path,
    options: EncodeOptions | None = None,
    *,
    rank: int = 0,
    world_size: int = 1,
    advance: Advance = lambda images: None,
) -> EncodeReport:
    """Encode `images` into token files in `out`; goes on where an earlier call with the same images and settings was stopped.

    The shards are dealt to `world_size` processes that see one file system, without any other connection; the last to finish writes the
    index. tokenizer: in `eval()` mode, on the device to use. advance: called with the number of images that are done since its last call,
    those of shards that were kept included. Images that cannot be read, and those whose size the tokenizer refuses, are reported; sides
    that do not divide into tokens are padded, and the images' own sizes are kept. Raises VqlabError for a tokenizer without ids, where
    `out` holds something else, or, if strict, for the first image that cannot be encoded.
    """
    options = options or EncodeOptions()
    if not tokenizer.quantizer.codebook_sizes:
        raise VqlabError("a tokenizer without a quantizer has no ids")
    plan = TokenPlan(
        fingerprint=tokenizer.fingerprint,
        codebook_sizes=tuple(tokenizer.quantizer.codebook_sizes),
        source=images.name,
        entries=len(images),
        digest=images.digest,
        shard_size=options.shard_size,
        classes=images.classes,
        image_size=images.image_size,
        precision="bf16" if options.bf16 else "float32",
        sequence=tokenizer.quantizes_sequences,
    )
    _begin(out, plan)
    mine = range(rank, plan.shards, world_size)
    kept = {number: shard for number in mine if (shard := _finished(out, plan, number)) is not None}
    skipped = [item for shard in kept.values() for item in shard.skipped]
    todo = [number for number in mine if number not in kept]
    advance(sum(len(shard) + len(shard.skipped) for shard in kept.values()))
    started, done = time.perf_counter(), 0
    with warnings.catch_warnings(), closing(_read(images, [i for number in todo for i in plan.entries_of(number)], options)) as pictures:
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # such files are reported
        for number in todo:
            encoded, bad = _encode_shard(tokenizer, islice(pictures, len(plan.entries_of(number))), images.names, options, advance)
            good = sorted(encoded)
            labels = None if images.labels is None else images.labels[good]
            write_shard(out / shard_name(number), plan, number, [encoded[i] for i in good], [images.names[i] for i in good], labels, bad)
            skipped += bad
            done += len(good)
    seconds = time.perf_counter() - started
    return EncodeReport(done, len(kept), len(todo), tuple(skipped), seconds, _finish(out, plan))


# -- one shard -------------------------------------------------------------------------------------------------------------------


def _read(images: NamedImages, numbers: Sequence[int], options: EncodeOptions) -> Generator[tuple[int, Tensor | str], None, None]:
    workers = 0 if images.in_memory else options.workers
    return read_ahead(images.read, numbers, workers=workers, depth=2 * options.batch_size, budget=AHEAD_BYTES)


def _encode_shard(
    tokenizer: Tokenizer, pictures: Iterable[tuple[int, Tensor | str]], names: Sequence[str], options: EncodeOptions, advance: Advance
) -> tuple[dict[int, Encoded], list[Skipped]]:
    """Each image's ids by its number, and the images without, in their order."""
    encoded: dict[int, Encoded] = {}
    skipped: dict[int, Skipped] = {}

    def skip(number: int, reason: str) -> None:
        name = names[number]
        skipped[number] = Skipped(name, reason.removeprefix(f"{name}: "))
        if options.strict:
            raise VqlabError(f"{name}: {skipped[number].reason}")
        advance(1)

    def readable() -> Iterator[tuple[int, Tensor]]:
        for number, picture in pictures:
            if isinstance(picture, str):
                skip(number, picture)
            else:
                yield number, picture

    device = next(tokenizer.parameters()).device
    for batch in batches_of_one_size(readable(), options.batch_size):
        try:
            with torch.autocast(device.type, torch.bfloat16, enabled=options.bf16):
                found = tokenizer.encode(torch.stack(batch.images)).cpu()
        except ValueError as error:  # images of this size are not for this tokenizer
            for number in batch.numbers:
                skip(number, str(error))
            continue
        height, width = batch.images[0].shape[1:]
        encoded |= {number: Encoded(ids, (height, width)) for number, ids in zip(batch.numbers, found, strict=True)}
        advance(len(batch.numbers))
    return encoded, [skipped[number] for number in sorted(skipped)]


# -- beginning and end -----------------------------------------------------------------------------------------------------------


def _begin(out: Path, plan: TokenPlan) -> None:
    """Write the plan, or compare it with the one that is there; VqlabError where `out` holds something else."""
    if out.exists() and not out.is_dir():
        raise VqlabError(f"{out} is a file, not a folder")
    begun = read_plan(out)
    if begun is None:
        if out.exists() and any(file.name != PLAN_NAME and not file.name.startswith(".") for file in out.iterdir()):
            raise VqlabError(f"{out} is not empty and holds no tokens: it is left alone")
        write_json(out / PLAN_NAME, plan.to_dict())
        return
    for field in dataclasses.fields(TokenPlan):
        old, new = getattr(begun, field.name), getattr(plan, field.name)
        if old != new:
            what = {"digest": "other images", "fingerprint": "another tokenizer"}.get(field.name, f"{field.name} {old!r}, not {new!r}")
            raise VqlabError(f"{out} was begun with {what}: choose another folder, or remove it")


def _finished(out: Path, plan: TokenPlan, number: int) -> TokenShard | None:
    """The shard of an earlier call; None where it is missing or damaged, so that it is written (again)."""
    path = out / shard_name(number)
    for leftover in out.glob(f".{path.name}.*.tmp"):  # of a call that was killed
        leftover.unlink(missing_ok=True)
    if not path.exists():
        return None
    try:
        shard = TokenShard.open(path)
        shard.all_ids()
    except VqlabError:
        return None
    right = shard.number == number and shard.fingerprint == plan.fingerprint and shard.codebook_sizes == plan.codebook_sizes
    right = right and shard.sequence == plan.sequence
    return shard if right and len(shard) + len(shard.skipped) == len(plan.entries_of(number)) else None


def _finish(out: Path, plan: TokenPlan) -> bool:
    """Write the index when every shard of every process is there; whether it is."""
    if not (out / INDEX_NAME).exists():
        paths = [out / shard_name(number) for number in range(plan.shards)]
        if not all(path.exists() for path in paths):
            return False
        shards = [TokenShard.open(path) for path in paths]
        skipped = [item for shard in shards for item in shard.skipped]
        if skipped:
            write_json(out / SKIPPED_NAME, [item._asdict() for item in skipped])
        grids = torch.cat([shard.grids.unique(dim=0) for shard in shards]).unique(dim=0).tolist()
        entries = tuple(
            ShardEntry(path.name, len(shard), shard.tokens, path.stat().st_size, file_sha256(path))
            for path, shard in zip(paths, shards, strict=True)
        )
        TokenIndex(plan, entries, (grids[0][0], grids[0][1]) if len(grids) == 1 else None, len(skipped)).write(out)
    (out / PLAN_NAME).unlink(missing_ok=True)
    return True

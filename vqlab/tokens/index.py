"""The table of contents of token files, `index.json`, and the plan that an unfinished encoding goes by, `plan.json`.

tokens/
    index.json                  what this is, which tokenizer wrote it, one entry for each shard; written last
    shard-00000.safetensors     ids, grids, names and labels of up to `shard_size` images (`vqlab.tokens.shard`)
    skipped.json                images that could not be encoded, with the reason; only where there are any
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vqlab import __version__
from vqlab.errors import VqlabError
from vqlab.storage import read_json, write_json

FORMAT = "vqlab-tokens"
FORMAT_VERSION = 1
INDEX_NAME, PLAN_NAME, SKIPPED_NAME = "index.json", "plan.json", "skipped.json"
#: Bytes of the largest index that is read: about 300,000 shards.
MAX_INDEX_BYTES = 64 * 2**20
_HEX = frozenset("0123456789abcdef")


def shard_name(number: int) -> str:
    """File of shard `number`, 0-based."""
    return f"shard-{number:05d}.safetensors"


@dataclass(frozen=True)
class TokenPlan:
    """What is encoded, by which tokenizer, into how many shards: only an encoding with the same plan goes on with the files of another.

    fingerprint: of the tokenizer.  codebook_sizes: one for each level.  source: what was encoded, in a word.  entries: images in the
    source.  digest: SHA-256 of their names, sizes and labels.  shard_size: entries per shard.  classes: names of the labels, None without
    labels.  image_size: side that images were resized and cropped to, None for their own.  precision: "float32" or "bf16".
    sequence: whether the tokens of an image are a sequence, which stands in the files as a grid of one row.
    """

    fingerprint: str
    codebook_sizes: tuple[int, ...]
    source: str
    entries: int
    digest: str
    shard_size: int
    classes: tuple[str, ...] | None = None
    image_size: int | None = None
    precision: str = "float32"
    sequence: bool = False

    @property
    def shards(self) -> int:
        """Number of shards: the last may be shorter."""
        return -(-self.entries // self.shard_size)

    @property
    def levels(self) -> int:
        return len(self.codebook_sizes)

    def entries_of(self, number: int) -> range:
        """Numbers of the images of a shard."""
        return range(number * self.shard_size, min((number + 1) * self.shard_size, self.entries))

    def to_dict(self) -> dict[str, Any]:
        """As it stands in the files."""
        return {"format": FORMAT, "format_version": FORMAT_VERSION, "vqlab_version": __version__, **dataclasses.asdict(self)}


@dataclass(frozen=True)
class ShardEntry:
    """file: name in the folder.  images, tokens (grid positions): what it holds.  bytes, sha256: of the file."""

    file: str
    images: int
    tokens: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class TokenIndex:
    """Everything about a folder of tokens but the tokens.

    grid: (h', w') where all images have the same, (1, n) where tokens are a sequence, else None.  skipped: number of images that could not
    be encoded.  vqlab_version: of the program that wrote it.
    """

    plan: TokenPlan
    shards: tuple[ShardEntry, ...]
    grid: tuple[int, int] | None
    skipped: int
    vqlab_version: str = __version__

    @property
    def images(self) -> int:
        return sum(shard.images for shard in self.shards)

    @property
    def tokens(self) -> int:
        """Grid positions; each has one id per level."""
        return sum(shard.tokens for shard in self.shards)

    def write(self, folder: Path) -> None:
        """Write index.json, atomically."""
        content = {**self.plan.to_dict(), "images": self.images, "tokens": self.tokens, "grid": self.grid, "skipped": self.skipped}
        write_json(folder / INDEX_NAME, {**content, "shards": [dataclasses.asdict(shard) for shard in self.shards]})

    @classmethod
    def read(cls, folder: str | Path) -> TokenIndex:
        """The index of a folder; VqlabError naming the file and the field that is missing, damaged or of another version."""
        path = Path(folder) / INDEX_NAME
        if not path.exists() and (Path(folder) / PLAN_NAME).is_file():
            raise VqlabError(f"{folder} is unfinished: give its `vqlab encode` command once more to complete it")
        content = _Fields(path)
        plan = content.plan()
        shards = tuple(_shard(content.path, plan, i, entry) for i, entry in enumerate(content.get("shards", list)))
        if len(shards) != plan.shards:
            raise VqlabError(
                f"{path}: 'shards' has {len(shards)} entries, {plan.entries} images in shards of {plan.shard_size} need {plan.shards}"
            )
        index = cls(plan, shards, content.grid(), content.count("skipped"), content.get("vqlab_version", str))
        for name in ("images", "tokens"):
            if content.count(name) != getattr(index, name):
                raise VqlabError(f"{path}: {name!r} is {content.count(name)}, its shards hold {getattr(index, name)}")
        if index.images + index.skipped != plan.entries:
            raise VqlabError(f"{path}: {index.images} images and {index.skipped} skipped ones are not the {plan.entries} 'entries'")
        return index


def read_plan(folder: Path) -> TokenPlan | None:
    """The plan of a finished or unfinished encoding in `folder`, None where there is neither."""
    for name in (INDEX_NAME, PLAN_NAME):
        if (folder / name).exists():
            return _Fields(folder / name).plan()
    return None


class _Fields:
    """A JSON file field by field, each checked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        content = read_json(path, MAX_INDEX_BYTES, missing=f"{path.parent} holds no tokens: it has no {path.name}")
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise VqlabError(f"{path} is not the index of vqlab tokens")
        if content.get("format_version") != FORMAT_VERSION or isinstance(content["format_version"], bool):
            raise VqlabError(f"{path}: format_version is {_short(content.get('format_version'))}, this vqlab reads {FORMAT_VERSION}")
        self.content = content

    def get(self, name: str, kind: type) -> Any:
        value = self.content.get(name)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise VqlabError(f"{self.path}: {name!r} must be of type {kind.__name__}, got {_short(value)}")
        return value

    def count(self, name: str, least: int = 0) -> int:
        value: int = self.get(name, int)
        if not least <= value < 2**53:
            raise VqlabError(f"{self.path}: {name!r} must lie in {least}..2^53, got {_short(value)}")
        return value

    def hash(self, name: str) -> str:
        value: str = self.get(name, str)
        if len(value) != 64 or not set(value) <= _HEX:
            raise VqlabError(f"{self.path}: {name!r} must be a SHA-256 in hexadecimal, got {_short(value)}")
        return value

    def grid(self) -> tuple[int, int] | None:
        value = self.content.get("grid")
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != 2 or any(type(side) is not int or not 1 <= side < 2**31 for side in value):
            raise VqlabError(f"{self.path}: 'grid' must be null or two positive integers, got {_short(value)}")
        return value[0], value[1]

    def plan(self) -> TokenPlan:
        sizes, classes = self.get("codebook_sizes", list), self.content.get("classes")
        if not sizes or len(sizes) > 1024 or any(type(size) is not int or not 1 <= size < 2**31 for size in sizes):
            raise VqlabError(f"{self.path}: 'codebook_sizes' must list positive integers below 2^31, got {_short(sizes)}")
        if classes is not None and (not isinstance(classes, list) or any(not isinstance(name, str) for name in classes)):
            raise VqlabError(f"{self.path}: 'classes' must be null or a list of names, got {_short(classes)}")
        precision = self.get("precision", str)
        if precision not in ("float32", "bf16"):
            raise VqlabError(f"{self.path}: 'precision' must be float32 or bf16, got {_short(precision)}")
        return TokenPlan(
            fingerprint=self.hash("fingerprint"),
            codebook_sizes=tuple(sizes),
            source=self.get("source", str),
            entries=self.count("entries", 1),
            digest=self.hash("digest"),
            shard_size=self.count("shard_size", 1),
            classes=None if classes is None else tuple(classes),
            image_size=None if self.content.get("image_size") is None else self.count("image_size", 1),
            precision=precision,
            sequence=self.get("sequence", bool) if "sequence" in self.content else False,
        )


def _shard(path: Path, plan: TokenPlan, number: int, content: Any) -> ShardEntry:
    """One checked entry of 'shards'. Names are not free: what an index names cannot lie outside its folder."""
    where = f"{path}: shard {number}"
    if not isinstance(content, dict):
        raise VqlabError(f"{where} must be a mapping, got {_short(content)}")
    if content.get("file") != shard_name(number):
        raise VqlabError(f"{where}: 'file' must be {shard_name(number)!r}, got {_short(content.get('file'))}")
    counts: dict[str, int] = {}
    for name in ("images", "tokens", "bytes"):
        value = content.get(name)
        if type(value) is not int or not 0 <= value < 2**53:
            raise VqlabError(f"{where}: {name!r} must be an integer in 0..2^53, got {_short(value)}")
        counts[name] = value
    if counts["images"] > plan.shard_size:
        raise VqlabError(f"{where}: {counts['images']} images are more than the 'shard_size' {plan.shard_size}")
    sha256 = content.get("sha256")
    if not isinstance(sha256, str) or len(sha256) != 64 or not set(sha256) <= _HEX:
        raise VqlabError(f"{where}: 'sha256' must be a SHA-256 in hexadecimal, got {_short(sha256)}")
    return ShardEntry(shard_name(number), counts["images"], counts["tokens"], counts["bytes"], sha256)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."

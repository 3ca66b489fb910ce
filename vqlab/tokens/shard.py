"""One shard of token files: a safetensors file that is complete by itself, mapped into memory and not read as a whole.

ids        (tokens, levels)   uint8, uint16 or int32: one grid after the other, each in raster order
grids      (images, 2)        int32: rows and columns of each image's grid, 1 and n of a sequence
sizes      (images, 2)        int32: height and width of each image, which may be smaller than what its ids decode to
names      (bytes,)           uint8: the source names in UTF-8, one after the other
name_ends  (images,)          int64: where each name ends
labels     (images,)          int64, only where there are any

The header's metadata, one entry "vqlab", is JSON: format, format_version, vqlab_version, fingerprint, codebook_sizes, number,
sequence, skipped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vqlab import __version__
from vqlab.errors import VqlabError
from vqlab.storage import write_atomically
from vqlab.tokens.index import FORMAT, FORMAT_VERSION, TokenPlan

_METADATA = "vqlab"
_ID_TYPES = (torch.uint8, torch.uint16, torch.int32)


class Skipped(NamedTuple):
    """An image that could not be encoded, and why."""

    name: str
    reason: str


def id_type(codebook_sizes: Sequence[int]) -> torch.dtype:
    """The smallest type that holds every id."""
    largest = max(codebook_sizes) - 1
    return torch.uint8 if largest < 2**8 else torch.uint16 if largest < 2**16 else torch.int32


class Encoded(NamedTuple):
    """ids: of one image, (h', w', levels), or (n, levels) of a sequence.  size: height and width of the image."""

    ids: Tensor
    size: tuple[int, int]


def write_shard(
    path: Path,
    plan: TokenPlan,
    number: int,
    images: Sequence[Encoded],
    names: Sequence[str],
    labels: Tensor | None,
    skipped: Sequence[Skipped],
) -> None:
    """Write encoded images, their names and labels (n,) as shard `number` of a plan, atomically."""
    encoded = [name.encode("utf-8", "surrogateescape") for name in names]
    flat = [image.ids.reshape(-1, plan.levels) for image in images] or [torch.zeros(0, plan.levels, dtype=torch.int64)]
    grids = [(1, len(image.ids)) if plan.sequence else image.ids.shape[:2] for image in images]
    tensors = {
        "ids": torch.cat(flat).to(id_type(plan.codebook_sizes)),
        "grids": torch.tensor(grids, dtype=torch.int32).reshape(-1, 2),
        "sizes": torch.tensor([image.size for image in images], dtype=torch.int32).reshape(-1, 2),
        "names": torch.frombuffer(bytearray(b"".join(encoded)), dtype=torch.uint8) if encoded else torch.zeros(0, dtype=torch.uint8),
        "name_ends": torch.tensor([len(name) for name in encoded], dtype=torch.int64).cumsum(0),
    }
    if labels is not None:
        tensors["labels"] = labels.to(torch.int64).contiguous()
    # One entry: the order of several is not the same in every process, and equal images shall give equal bytes.
    metadata = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "vqlab_version": __version__,
        "fingerprint": plan.fingerprint,
        "codebook_sizes": plan.codebook_sizes,
        "number": number,
        "sequence": plan.sequence,
        "skipped": skipped,
    }
    write_atomically(path, lambda temporary: save_file(tensors, temporary, metadata={_METADATA: json.dumps(metadata)}))


@dataclass(frozen=True)
class TokenShard:
    """An open shard. ids and names stay in the file until they are used; the rest is read.

    sizes: height and width of each image (n, 2); None in shards of the first vqlab, which encoded no others than whole grids.
    """

    path: Path
    number: int
    fingerprint: str
    codebook_sizes: tuple[int, ...]
    sequence: bool
    grids: Tensor
    sizes: Tensor | None
    labels: Tensor | None
    skipped: tuple[Skipped, ...]
    _ids: Tensor = field(repr=False)
    _ends: Tensor = field(repr=False)
    _names: Tensor = field(repr=False)
    _name_ends: Tensor = field(repr=False)

    def __len__(self) -> int:
        return len(self.grids)

    @property
    def tokens(self) -> int:
        """Grid positions."""
        return len(self._ids)

    def ids(self, i: int) -> Tensor:
        """Ids of image i: (h', w', levels) int64, or (n, levels) of a sequence.

        VqlabError for an id outside the codebook, which says that the file is damaged.
        """
        end, (h, w) = int(self._ends[i]), self.grids[i].tolist()
        ids = self._checked(self._ids[end - h * w : end])
        return ids if self.sequence else ids.view(h, w, -1)

    def size(self, i: int) -> tuple[int, int] | None:
        """Height and width of image i, None where the shard does not say."""
        return None if self.sizes is None else (int(self.sizes[i, 0]), int(self.sizes[i, 1]))

    def all_ids(self) -> Tensor:
        """Ids of all images, one after the other: (tokens, levels) int64, checked likewise."""
        return self._checked(self._ids)

    def name(self, i: int) -> str:
        """Source name of image i."""
        start = int(self._name_ends[i - 1]) if i else 0
        return bytes(self._names[start : int(self._name_ends[i])].tolist()).decode("utf-8", "surrogateescape")

    def _checked(self, ids: Tensor) -> Tensor:
        ids = ids.to(torch.int64)
        if ids.numel():
            low, high = ids.aminmax(dim=0)
            for level, size in enumerate(self.codebook_sizes):
                if int(low[level]) < 0 or int(high[level]) >= size:
                    value = int(low[level]) if int(low[level]) < 0 else int(high[level])
                    raise VqlabError(f"{self.path} is damaged: id {value} at level {level + 1}, which has {size} codes")
        return ids

    @classmethod
    def open(cls, path: Path) -> TokenShard:
        """A shard that has been checked but for its ids. VqlabError names the file and what is wrong with it."""
        try:
            with safe_open(path, "pt") as file:
                header = _header(path, file.metadata() or {})
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (the handle is no mapping)
        except (OSError, SafetensorError, RuntimeError, ValueError) as error:
            raise VqlabError(f"cannot read {path}: {(str(error).splitlines() or [type(error).__name__])[0]}") from error
        _check_tensors(path, tensors, len(header.codebook_sizes))
        grids = tensors["grids"].to(torch.int64)
        # In float64: a sum of damaged numbers may wrap around.
        total = float(grids.double().prod(1).sum())
        if (len(grids) and int(grids.min()) < 1) or total != len(tensors["ids"]):
            raise VqlabError(f"{path} is damaged: its grids hold {total:.0f} tokens, its ids {len(tensors['ids'])}")
        if header.sequence and bool((grids[:, 0] != 1).any()):
            raise VqlabError(f"{path} is damaged: it holds sequences, but grids of several rows")
        sizes = tensors.get("sizes")
        if sizes is not None and len(sizes) and int(sizes.min()) < 1:
            raise VqlabError(f"{path} is damaged: it holds an image without pixels")
        lengths = tensors["name_ends"].diff(prepend=tensors["name_ends"].new_zeros(1))
        if (len(lengths) and int(lengths.min()) < 0) or int(lengths.sum()) != len(tensors["names"]):
            raise VqlabError(f"{path} is damaged: its names do not end where they should")
        labels = tensors.get("labels")
        if labels is not None and len(labels) and int(labels.min()) < 0:
            raise VqlabError(f"{path} is damaged: it holds the label {int(labels.min())}")
        return cls(
            path=path,
            number=header.number,
            fingerprint=header.fingerprint,
            codebook_sizes=header.codebook_sizes,
            sequence=header.sequence,
            grids=grids,
            sizes=None if sizes is None else sizes.clone(),
            labels=None if labels is None else labels.clone(),
            skipped=header.skipped,
            _ids=tensors["ids"],
            _ends=grids.prod(1).cumsum(0),
            _names=tensors["names"],
            _name_ends=tensors["name_ends"].clone(),
        )


class _Header(NamedTuple):
    number: int
    fingerprint: str
    codebook_sizes: tuple[int, ...]
    sequence: bool
    skipped: tuple[Skipped, ...]


def _header(path: Path, metadata: dict[str, str]) -> _Header:
    """The checked metadata."""
    try:
        content: Any = json.loads(metadata[_METADATA])
    except (KeyError, ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise VqlabError(f"{path} is no shard of vqlab tokens")
    if type(content.get("format_version")) is not int or content["format_version"] != FORMAT_VERSION:
        raise VqlabError(f"{path}: format_version is {str(content.get('format_version'))[:40]}, this vqlab reads {FORMAT_VERSION}")
    number, fingerprint, sizes, skipped = (content.get(name) for name in ("number", "fingerprint", "codebook_sizes", "skipped"))
    if type(number) is not int or number < 0 or not isinstance(fingerprint, str):
        raise VqlabError(f"{path} is damaged: its metadata lacks a usable 'number' or 'fingerprint'")
    if not isinstance(sizes, list) or not sizes or any(type(size) is not int or not 1 <= size < 2**31 for size in sizes):
        raise VqlabError(f"{path} is damaged: its metadata lacks usable 'codebook_sizes'")
    if not isinstance(skipped, list) or any(
        not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(text, str) for text in pair) for pair in skipped
    ):
        raise VqlabError(f"{path} is damaged: its metadata lacks a usable 'skipped'")
    sequence = content.get("sequence", False)
    if not isinstance(sequence, bool):
        raise VqlabError(f"{path} is damaged: its metadata lacks a usable 'sequence'")
    return _Header(number, fingerprint, tuple(sizes), sequence, tuple(Skipped(*pair) for pair in skipped))


def _check_tensors(path: Path, tensors: dict[str, Tensor], levels: int) -> None:
    """VqlabError unless the tensors have the names, types and sizes of a shard."""
    unknown = sorted(tensors.keys() - {"ids", "grids", "sizes", "names", "name_ends", "labels"})
    if unknown:
        raise VqlabError(f"{path} is damaged: unknown tensor {unknown[0][:60]!r}")
    for name in ("ids", "grids", "names", "name_ends"):
        if name not in tensors:
            raise VqlabError(f"{path} is damaged: it lacks {name!r}")
    images = len(tensors["grids"]) if tensors["grids"].dim() else 0
    wanted: dict[str, tuple[tuple[torch.dtype, ...], tuple[int, ...]]] = {
        "ids": (_ID_TYPES, (tensors["ids"].shape[:1] or (0,)) + (levels,)),
        "grids": ((torch.int32,), (images, 2)),
        "sizes": ((torch.int32,), (images, 2)),
        "names": ((torch.uint8,), (tensors["names"].numel(),)),
        "name_ends": ((torch.int64,), (images,)),
        "labels": ((torch.int64,), (images,)),
    }
    for name, tensor in tensors.items():
        types, shape = wanted[name]
        if tensor.dtype not in types or tuple(tensor.shape) != tuple(shape):
            names = " or ".join(str(kind).removeprefix("torch.") for kind in types)
            kind = str(tensor.dtype).removeprefix("torch.")
            raise VqlabError(f"{path} is damaged: {name!r} is {kind} {tuple(tensor.shape)}, expected {names} {tuple(shape)}")

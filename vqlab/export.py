"""Tokenizers as graphs for other programs: `torch.export` (.pt2) and ONNX, each compared with the tokenizer itself when it is written.

encoder   images (b, channels, h, w) float32 in [0, 1]  -->  ids (b, h', w', levels) int64
decoder   ids (b, h', w', levels) int64                  -->  images (b, channels, h, w) float32 in [0, 1]

The batch is free, the size of the images is fixed. A graph checks nothing: values out of range and ids without a code are the caller's to
avoid. Ids are argmins of float32 sums, and where two codes are equally near to the last digits another runtime may choose the other one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vqlab.errors import VqlabError
from vqlab.optional import require
from vqlab.quantizers.pyramid import PyramidQuantizer
from vqlab.storage import write_atomically

if TYPE_CHECKING:
    from vqlab.tokenizer import Tokenizer

FORMATS = {"torch": ".pt2", "onnx": ".onnx"}
#: Share of ids that must equal the tokenizer's, and the largest difference of a pixel.
EQUAL_IDS, PIXEL_TOLERANCE = 0.999, 1e-3


class EncoderGraph(nn.Module):
    """Images to ids, without checks."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.tokenizer = tokenizer

    def forward(self, images: Tensor) -> Tensor:
        return self.tokenizer.quantizer.encode(self.tokenizer.encode_features(images))


class DecoderGraph(nn.Module):
    """Ids to images, without checks."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.tokenizer = tokenizer

    def forward(self, ids: Tensor) -> Tensor:
        return self.tokenizer.decode(self.tokenizer.quantizer.decode_indices(ids)).clamp(0.0, 1.0)


@dataclass(frozen=True)
class ExportCheck:
    """path: of the graph.  equal: share of values (ids, or pixels within PIXEL_TOLERANCE) that are the tokenizer's own.

    difference: the largest difference of a pixel; of ids that differ, 1.
    """

    path: Path
    equal: float
    difference: float


def export_encoder(tokenizer: Tokenizer, path: str | Path, format: str = "onnx", image_size: int | tuple[int, int] = 32) -> ExportCheck:
    """Write the graph from images to ids, and compare it with `tokenizer.encode` on random images in batches of 1 and 5.

    format: "onnx" (needs the extra `export`) or "torch".  image_size: both sides, or (h, w). Raises VqlabError for an unknown format, a
    missing library, a tokenizer that cannot be exported, and where fewer than EQUAL_IDS of the ids are equal; nothing is written then.
    """
    h, w = _sides(tokenizer, image_size)
    generator = torch.Generator().manual_seed(0)
    examples = [torch.rand(batch, tokenizer.channels, h, w, generator=generator) for batch in (1, 5)]
    try:
        tokenizer.encode(examples[0])
    except ValueError as error:
        raise VqlabError(f"the tokenizer cannot be exported: {error}") from error
    return _export(EncoderGraph(tokenizer), examples, Path(path), format, "images", "ids")


def export_decoder(tokenizer: Tokenizer, path: str | Path, format: str = "onnx", image_size: int | tuple[int, int] = 32) -> ExportCheck:
    """Write the graph from ids to images, and compare it with `tokenizer.decode_indices` likewise; the same errors."""
    h, w = _sides(tokenizer, image_size)
    if not tokenizer.quantizer.codebook_sizes:
        raise VqlabError("the tokenizer cannot be exported: a tokenizer without a quantizer has no ids")
    generator = torch.Generator().manual_seed(0)
    examples = [_random_ids(tokenizer, batch, tokenizer.token_grid(h, w), generator) for batch in (1, 5)]
    return _export(DecoderGraph(tokenizer), examples, Path(path), format, "ids", "images")


def _sides(tokenizer: Tokenizer, image_size: int | tuple[int, int]) -> tuple[int, int]:
    """Sides of the images that a graph is fixed to; VqlabError where they would be padded, which a graph does not do."""
    h, w = (image_size, image_size) if isinstance(image_size, int) else image_size
    try:
        padded = tokenizer.padded_size(h, w)
    except ValueError as error:
        raise VqlabError(f"the tokenizer cannot be exported: {error}") from error
    if padded != (h, w):
        wanted = f"{padded[0]}x{padded[1]}" if hasattr(tokenizer.encoder, "fixed_size") else f"multiples of {tokenizer.factor}"
        raise VqlabError(f"the tokenizer cannot be exported: image sides must be {wanted}, got {h}x{w}")
    return h, w


def _random_ids(tokenizer: Tokenizer, batch: int, grid: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Ids that an image could have: in a pyramid the same within each cell."""
    levels = []
    for level, size in enumerate(tokenizer.quantizer.codebook_sizes):
        ids = torch.randint(size, (batch, *grid), generator=generator)
        if isinstance(tokenizer.quantizer, PyramidQuantizer):
            cell = tokenizer.quantizer.cell(level)
            rows, columns = (torch.arange(side) // cell * cell for side in grid)
            ids = ids[:, rows][:, :, columns]
        levels.append(ids)
    return torch.stack(levels, -1)


def _export(graph: nn.Module, examples: list[Tensor], path: Path, format: str, source: str, target: str) -> ExportCheck:
    if format not in FORMATS:
        raise VqlabError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    graph = graph.cpu().eval()
    write, run = _torch_graph(graph, examples[1]) if format == "torch" else _onnx_graph(graph, examples[1], source, target)
    path.parent.mkdir(parents=True, exist_ok=True)
    checks: list[ExportCheck] = []

    def write_and_check(temporary: Path) -> None:
        write(temporary)
        checks.append(_compare(graph, run(temporary), examples, path))

    write_atomically(path, write_and_check)
    return checks[0]


@torch.no_grad()
def _compare(graph: nn.Module, run: Callable[[Tensor], Tensor], examples: list[Tensor], path: Path) -> ExportCheck:
    pairs = [(graph(example), run(example)) for example in examples]
    for own, other in pairs:
        if own.shape != other.shape or own.dtype != other.dtype:
            raise VqlabError(f"{path}: the graph gives {other.dtype} {tuple(other.shape)}, the tokenizer {own.dtype} {tuple(own.shape)}")
    difference = torch.cat([(own.double() - other.double()).abs().flatten() for own, other in pairs])
    ids = not pairs[0][0].is_floating_point()
    equal = float((difference <= (0 if ids else PIXEL_TOLERANCE)).double().mean())
    if equal < (EQUAL_IDS if ids else 1.0):
        raise VqlabError(f"{path}: the graph differs from the tokenizer: {equal:.2%} of its values are equal")
    return ExportCheck(path, equal, float(difference.clamp(max=1.0).max()))


Write = Callable[[Path], None]
Load = Callable[[Path], Callable[[Tensor], Tensor]]


def _torch_graph(graph: nn.Module, example: Tensor) -> tuple[Write, Load]:
    program = _traced(lambda: torch.export.export(graph, (example,), dynamic_shapes=(_batch(),)))

    def write(path: Path) -> None:
        with open(path, "wb") as file:  # a path would have to end with .pt2
            torch.export.save(program, file)

    def load(path: Path) -> Callable[[Tensor], Tensor]:
        with open(path, "rb") as file:
            module = torch.export.load(file).module()
        return lambda value: module(value)

    return write, load


def _onnx_graph(graph: nn.Module, example: Tensor, source: str, target: str) -> tuple[Write, Load]:
    runtime = require("onnxruntime", "export", "exporting to ONNX")
    require("onnxscript", "export", "exporting to ONNX")
    program = _traced(
        lambda: torch.onnx.export(
            graph, (example,), dynamo=True, input_names=[source], output_names=[target], dynamic_shapes=(_batch(),), verbose=False
        )
    )

    def load(path: Path) -> Callable[[Tensor], Tensor]:
        session = runtime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
        return lambda value: torch.from_numpy(session.run([target], {source: value.numpy()})[0])

    return lambda path: program.save(str(path), external_data=False), load


def _batch() -> dict[int, object]:
    return {0: torch.export.Dim("batch", min=1)}


def _traced(trace: Callable[[], Any]) -> Any:
    try:
        with torch.no_grad():
            return trace()
    except VqlabError:
        raise
    except Exception as error:  # what a graph cannot hold shows in many ways
        raise VqlabError(f"the tokenizer cannot be exported: {(str(error).splitlines() or [type(error).__name__])[0]}") from error

"""One vector per image from a tokenizer: histograms of ids, pooled centroids, encoder outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vqlab import assignment
from vqlab.data import Split
from vqlab.errors import VqlabError
from vqlab.evaluation import check_sides
from vqlab.images import as_unit_images
from vqlab.progress import progress
from vqlab.quantizers import Codebook, DDCLCodebook, QuantizerOutput
from vqlab.tokenizer import Tokenizer

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Pass:
    """One batch that went through encoder and quantizer.

    features: encoder output (b, dim, h, w), or (b, n, dim) where tokens are a sequence.  out: the quantizer's output, ids of the hard
    chain included.  soft: mean_n q_n over each image's tokens, (b, K), of every soft level that was asked for.
    """

    tokenizer: Tokenizer
    features: Tensor
    out: QuantizerOutput
    soft: tuple[Tensor, ...]


def hard_histogram(batch: Pass) -> Tensor:
    """Square roots of the shares of an image's tokens that choose each code, all levels side by side: (b, sum of K).

    With square roots the Euclidean distance is Hellinger's (Arandjelovic and Zisserman, "Three things everyone should know to improve
    object retrieval", CVPR 2012).
    """
    ids = batch.out.indices.flatten(1, -2)  # (b, tokens, levels)
    shares = []
    for level, size in enumerate(batch.tokenizer.quantizer.codebook_sizes):
        counts = torch.zeros(ids.shape[0], size, device=ids.device)
        counts.scatter_add_(1, ids[..., level], torch.ones_like(ids[..., level], dtype=counts.dtype))
        shares.append(counts / ids.shape[1])
    return torch.cat(shares, 1).sqrt()


def soft_histogram(batch: Pass) -> Tensor:
    """Square roots of the mean assignment of an image's tokens, mean_n q_n, of all soft levels side by side: (b, sum of K)."""
    return torch.cat(batch.soft, 1).sqrt()


def pooled_centroids(batch: Pass) -> Tensor:
    """Mean over the tokens of what the quantizer hands on, soft centroids or codes: (b, dim)."""
    return _pooled(batch.out.quantized)


def pooled_encoder(batch: Pass) -> Tensor:
    """Mean over the tokens of the encoder's output: (b, dim)."""
    return _pooled(batch.features)


def _pooled(vectors: Tensor) -> Tensor:
    """(b, dim, h, w) or (b, n, dim) -> (b, dim)"""
    return vectors.flatten(2).mean(2) if vectors.dim() == 4 else vectors.mean(1)


def encoder_map(batch: Pass) -> Tensor:
    """The encoder's output at every place: (b, dim h w)."""
    return batch.features.flatten(1)


def code_map(batch: Pass) -> Tensor:
    """The vectors that the ids stand for, at every place: (b, dim h w)."""
    return batch.tokenizer.quantizer.decode_indices(batch.out.indices).flatten(1)


#: Every kind of vector, in the order of the probe's table.
FEATURES: dict[str, Callable[[Pass], Tensor]] = {
    "hard_histogram": hard_histogram,
    "soft_histogram": soft_histogram,
    "pooled_centroids": pooled_centroids,
    "pooled_encoder": pooled_encoder,
    "code_map": code_map,
    "encoder_map": encoder_map,
}


def available_features(tokenizer: Tokenizer) -> tuple[str, ...]:
    """Names that this tokenizer can give: no soft histogram without soft levels, nothing of ids without a quantizer."""
    books = tokenizer.quantizer.codebooks
    missing = set() if any(book.is_soft for book in books) else {"soft_histogram"}
    if not books:
        missing |= {"hard_histogram", "pooled_centroids", "code_map"}
    return tuple(name for name in FEATURES if name not in missing)


@torch.no_grad()
def image_features(tokenizer: Tokenizer, images: Tensor | Split, names: Sequence[str], batch_size: int = 500) -> dict[str, Vectors]:
    """Vectors of uint8 images (n, c, h, w), or of a split's plain images, under each name: float32 (n, dimensions).

    The tokenizer must be in `eval()` mode. VqlabError for a name that is unknown or that this tokenizer cannot give, and for images that
    it would pad.
    """
    check_sides((images.shape[2], images.shape[3]) if isinstance(images, Tensor) else images.image_size, tokenizer)
    for name in names:
        if name not in available_features(tokenizer):
            raise VqlabError(f"this tokenizer has no feature {name!r}: choose from {', '.join(available_features(tokenizer))}")
    device = next(tokenizer.parameters()).device
    parts: dict[str, list[Tensor]] = {name: [] for name in names}
    chunks = torch.arange(len(images)).split(batch_size)
    for chosen in progress(chunks, "encode", total=len(chunks)):
        chunk = images[chosen] if isinstance(images, Tensor) else images.plain(chosen)
        batch = encode_batch(tokenizer, as_unit_images(chunk, tokenizer.channels).to(device), soft="soft_histogram" in names)
        for name in names:
            parts[name].append(FEATURES[name](batch).float().cpu())
    return {name: torch.cat(chunks).numpy() for name, chunks in parts.items()}


def encode_batch(tokenizer: Tokenizer, unit: Tensor, *, soft: bool = False) -> Pass:
    """Encoder and quantizer on images (b, c, h, w) in [0, 1]; `soft` asks for the assignments of soft levels too."""
    features = tokenizer.encode_features(unit)
    books = tokenizer.quantizer.codebooks
    entered: dict[int, Tensor] = {}  # what each level was given: the soft chain, which only the stack itself knows

    def remember(book: torch.nn.Module, inputs: tuple[Tensor, ...]) -> None:
        entered[id(book)] = inputs[0]

    handles = [book.register_forward_pre_hook(remember) for book in books] if soft else []
    try:
        out = tokenizer.quantizer(features)
    finally:
        for handle in handles:
            handle.remove()
    soft_levels = tuple(_mean_assignment(book, entered[id(book)], len(unit)) for book in books if book.is_soft) if soft else ()
    return Pass(tokenizer, features, out, soft_levels)


def _mean_assignment(book: Codebook, tokens: Tensor, images: int) -> Tensor:
    """mean_n q_n of each image by itself: tokens of all images (n, d) -> (images, K)."""
    if isinstance(book, DDCLCodebook):  # all images at once
        offset = book.codes.mean(0)  # the distances do not change, their cancellation does
        distances = torch.cdist(tokens - offset, book.codes - offset).square()
        return assignment.boltzmann(distances, book.temperature).view(images, -1, book.codebook_size).mean(1)
    means = [book(part).mean_assignment for part in tokens.view(images, -1, book.dim)]
    assert all(mean is not None for mean in means), f"{book.kind} is soft and gives no mean assignment"
    return torch.stack(means)

"""The codebook atlas: what each code stands for, shown by the image patches that choose it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate, pad

from vqlab.images import as_unit_images
from vqlab.progress import progress
from vqlab.quantizers import Quantizer
from vqlab.quantizers.pyramid import PyramidQuantizer
from vqlab.tokenizer import Tokenizer

#: Patches shown of each code, as a square of SIDE x SIDE.
SIDE = 3
PATCHES = SIDE * SIDE
NEIGHBOURS = 6
#: Pixels of the longer side of whole images, where tokens have no place.
WHOLE_SIDE = 48


@dataclass(frozen=True)
class Atlas:
    """One level of a codebook.

    counts: tokens of the images that choose each code (K,).  patches: uint8 (K, PATCHES, p, p, 3), those of the nearest tokens that choose
    the code, white where there are fewer; a patch is the token's cell with one cell on every side of it, or the whole image where tokens
    are a sequence, which has no places.  filled: how many of them are there (K,).  neighbours: nearest other codes (K, up to NEIGHBOURS)
    and distances, their Euclidean distances.  plane: first two principal components of the codes (K, 2).  variance: share of the codes'
    variance that each explains (2,).
    """

    counts: NDArray[np.int64]
    patches: NDArray[np.uint8]
    filled: NDArray[np.int64]
    neighbours: NDArray[np.int64]
    distances: NDArray[np.float64]
    plane: NDArray[np.float64]
    variance: NDArray[np.float64]


@torch.no_grad()
def build_atlases(tokenizer: Tokenizer, images: Tensor, batch_size: int = 250) -> list[Atlas]:
    """One atlas per level from uint8 images (n, 3, h, w); none without a quantizer."""
    if not tokenizer.quantizer.codebooks:
        return []
    chunks = progress(images.split(batch_size), "atlas", total=-(-len(images) // batch_size))
    passes = [_tokens(tokenizer, chunk) for chunk in chunks]
    ids = torch.cat([p[0] for p in passes])  # (n, h, w, levels) or (n, tokens, levels)
    distances = torch.cat([p[1] for p in passes])
    quantizer = tokenizer.quantizer
    atlases = []
    for level, book in enumerate(quantizer.codebooks):
        cell = quantizer.cell(level) if isinstance(quantizer, PyramidQuantizer) else 1
        # The id of a coarse cell repeats over its places: each once.
        once = (slice(None), slice(None, None, cell), slice(None, None, cell))[: ids.dim() - 1]
        codes, pixels = book.codes.detach().float().cpu(), cell * tokenizer.factor
        atlases.append(_atlas(codes, ids[..., level][once], distances[..., level][once], images, pixels, 3 * tokenizer.factor))
    return atlases


def _tokens(tokenizer: Tokenizer, images: Tensor) -> tuple[Tensor, Tensor]:
    """Ids and squared distances of tokens to their codes along the hard chain, both (b, h, w, levels) or (b, n, levels)."""
    device = next(tokenizer.parameters()).device
    features = tokenizer.encode_features(as_unit_images(images, tokenizer.channels).to(device))
    ids = tokenizer.quantizer.encode(features)
    return ids.cpu(), hard_chain_distances(tokenizer.quantizer, features, ids).cpu()


def hard_chain_distances(quantizer: Quantizer, features: Tensor, ids: Tensor) -> Tensor:
    """||token - code||^2 at each level, where a level sees what the codes before it left: (b, dim, h, w), (b, h, w, levels) -> like ids.

    In a pyramid the token of a coarse cell is the mean over the cell, and its distance stands at each of its places.
    """
    if isinstance(quantizer, PyramidQuantizer):
        return _pyramid_distances(quantizer, features, ids)
    if features.dim() == 3:  # a sequence (b, n, dim)
        features = features.movedim(-1, 1)
    rest = quantizer.space.enter(features.movedim(1, -1).reshape(-1, quantizer.dim).float())
    flat, parts = ids.reshape(-1, ids.shape[-1]), []
    for level, book in enumerate(quantizer.codebooks):
        code = book.lookup(flat[:, level])
        parts.append((rest - code).square().sum(-1))
        rest = code if quantizer.topology == "cascade" else rest - code
    return torch.stack(parts, -1).view(ids.shape)


def _pyramid_distances(quantizer: PyramidQuantizer, features: Tensor, ids: Tensor) -> Tensor:
    height, width = ids.shape[1:3]
    z = quantizer.space.enter(features.movedim(1, -1).reshape(-1, quantizer.dim).float())
    left, parts = z.view(len(ids), height, width, -1).movedim(-1, 1), []
    for level, book in enumerate(quantizer.codebooks):
        cell = quantizer.cell(level)
        means = avg_pool2d(left, cell, ceil_mode=True, count_include_pad=False)
        means = means.repeat_interleave(cell, 2).repeat_interleave(cell, 3)[..., :height, :width]
        code = book.lookup(ids[..., level]).movedim(-1, 1)
        parts.append((means - code).square().sum(1))
        left = left - code
    return torch.stack(parts, -1)


def _patches(images: Tensor, factor: int, side: int, wanted: list[tuple[int, int, int]]) -> NDArray[np.uint8]:
    """Cells of factor x factor pixels with one cell on every side, as (m, side, side, 3), of the (image, row, column) that are wanted."""
    # Reflection shows what an edge looks like to a convolution; it cannot fill more than the image has.
    mode = "reflect" if factor < min(images.shape[2:]) else "replicate"
    found = np.empty((len(wanted), side, side, 3), np.uint8)
    for i, (image, row, column) in enumerate(wanted):
        padded = pad(images[image : image + 1].float(), (factor,) * 4, mode=mode)
        patch = padded[..., row * factor : (row + 3) * factor, column * factor : (column + 3) * factor]
        found[i] = _resized(patch, side)
    return found


def _resized(picture: Tensor, side: int) -> NDArray[np.uint8]:
    """(1, 3, h, w) on 0..255 -> uint8 (side, side, 3)."""
    if picture.shape[2:] != (side, side):
        picture = interpolate(picture, (side, side), mode="bilinear", antialias=True)
    return picture[0].round().clamp(0, 255).byte().permute(1, 2, 0).numpy()


def _atlas(codes: Tensor, ids: Tensor, distances: Tensor, images: Tensor, factor: int, side: int) -> Atlas:
    """factor: pixels of a token's side.  side: pixels of a patch's."""
    size, tokens_per_image = len(codes), ids[0].numel()
    if ids.dim() == 2:
        side = min(max(images.shape[2:]), WHOLE_SIDE)
    flat = ids.flatten()
    counts = torch.bincount(flat, minlength=size)
    # Sorted by code and, within a code, by distance: the first PATCHES of each stretch are the ones to show.
    order = torch.argsort(distances.flatten(), stable=True)
    order = order[torch.argsort(flat[order], stable=True)]
    starts = counts.cumsum(0) - counts
    patches = np.full((size, PATCHES, side, side, 3), 255, np.uint8)
    for code in range(size):
        tokens = order[starts[code] : starts[code] + min(int(counts[code]), PATCHES)].tolist()
        if ids.dim() == 2:
            pictures = [_resized(images[token // tokens_per_image][None].float(), side) for token in tokens]
            patches[code, : len(tokens)] = np.stack(pictures) if pictures else patches[code, :0]
        else:
            places = [(token // tokens_per_image, *divmod(token % tokens_per_image, ids.shape[2])) for token in tokens]
            patches[code, : len(tokens)] = _patches(images, factor, side, places)
    between = torch.cdist(codes, codes, compute_mode="donot_use_mm_for_euclid_dist")
    between.fill_diagonal_(torch.inf)
    near = between.topk(min(NEIGHBOURS, size - 1), largest=False)
    centred = (codes - codes.mean(0)).double()
    _, singular, directions = torch.linalg.svd(centred, full_matrices=False)
    plane = torch.zeros(size, 2, dtype=torch.float64)
    axes = min(2, len(singular))
    plane[:, :axes] = centred @ directions[:axes].T
    variance = torch.zeros(2, dtype=torch.float64)
    variance[:axes] = singular[:axes] ** 2 / singular.square().sum().clamp_min(1e-30)
    return Atlas(
        counts.numpy(),
        patches,
        counts.clamp(max=PATCHES).numpy(),
        near.indices.numpy(),
        near.values.double().numpy(),
        plane.numpy(),
        variance.numpy(),
    )


def sprite(patches: NDArray[np.uint8], per_row: int) -> NDArray[np.uint8]:
    """Tiles of SIDE x SIDE patches, `per_row` codes across: (K, PATCHES, p, p, 3) -> one uint8 picture (rows tile, per_row tile, 3)."""
    size, _, p, _, _ = patches.shape
    rows = -(-size // per_row)
    full = np.full((rows * per_row, *patches.shape[1:]), 255, np.uint8)
    full[:size] = patches
    grid = full.reshape(rows, per_row, SIDE, SIDE, p, p, 3)
    return grid.transpose(0, 2, 4, 1, 3, 5, 6).reshape(rows * SIDE * p, per_row * SIDE * p, 3)

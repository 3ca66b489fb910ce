"""The quantizers that `vqlab bench quantizers` compares: each trains on and quantizes tokens (n, d) with K codes of dimension d."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vqlab.assignment import SoftAssignment, entropy_of, soft_assign_reference, usage_penalty
from vqlab.quantizers import DDCLCodebook, VQCodebook


@dataclass(frozen=True)
class Layer:
    """module: holds the codes.  loss: tokens (n, d) with gradient -> scalar.  ids: tokens -> (n,) ids, without gradient."""

    module: nn.Module
    loss: Callable[[Tensor], Tensor]
    ids: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Candidate:
    """A quantizer to be measured.

    title: how tables name it.  build: (d, K) -> Layer; ValueError where it cannot have K codes.  bytes_per_pair: what a training step holds
    at its peak for each pair of a token and a code, 0 if not the whole matrix; measured, rounded up.  pair_depth: whether that is per
    dimension too.  package: what must be installed.
    """

    title: str
    build: Callable[[int, int], Layer]
    bytes_per_pair: float = 0.0
    pair_depth: bool = False
    package: str | None = None

    def bytes_needed(self, n: int, d: int, k: int) -> float:
        """Estimated peak of a training step, in bytes."""
        return self.bytes_per_pair * n * k * (d if self.pair_depth else 1) + 4.0 * (4 * n * d + 8 * k * d) + 64 * 4.0 * k * 2

    @property
    def missing(self) -> str | None:
        """The package that is needed and not installed."""
        return self.package if self.package and importlib.util.find_spec(self.package) is None else None


def _ddcl(d: int, k: int) -> Layer:
    level = DDCLCodebook(d, k, tau_start=0.02, init="random")

    def loss(z: Tensor) -> Tensor:
        out = level(z)
        return out.quantized.square().mean() + out.loss

    return Layer(level, loss, level.encode)


def _vqvae(d: int, k: int) -> Layer:
    level = VQCodebook(d, k, init="random")

    def loss(z: Tensor) -> Tensor:
        out = level(z)
        level.after_step()
        return out.quantized.square().mean() + out.loss

    return Layer(level, loss, level.encode)


class _Codes(nn.Module):
    def __init__(self, d: int, k: int) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.randn(k, d))


def _soft_loss(soft: SoftAssignment, d: int) -> Tensor:
    """The loss of a DDCL level with its default weights."""
    return soft.centroid.square().mean() + 0.05 * soft.l_q / d + 0.03 * usage_penalty(soft.mean_assignment) + 0.03 * soft.entropy.mean()


def _plain(d: int, k: int) -> Layer:
    book = _Codes(d, k)
    temperature = 0.02 * d

    def loss(z: Tensor) -> Tensor:
        p = book.codes
        distances = z.square().sum(-1, keepdim=True) - 2.0 * z @ p.T + p.square().sum(-1)
        q = torch.softmax(-distances / temperature, -1)
        mu, mean = q @ p, q.mean(0)
        l_q = (q * distances).sum(-1).mean()
        entropy = -(q * q.clamp_min(1e-30).log()).sum(-1).mean()
        return mu.square().mean() + 0.05 * l_q / d + 0.03 * -entropy_of(mean) + 0.03 * entropy

    def ids(z: Tensor) -> Tensor:
        p = book.codes
        return (p.square().sum(-1) - 2.0 * z @ p.T).argmin(-1)

    return Layer(book, loss, ids)


def _reference(d: int, k: int) -> Layer:
    book = _Codes(d, k)

    def loss(z: Tensor) -> Tensor:
        return _soft_loss(soft_assign_reference(z, book.codes, 0.02 * d), d)

    return Layer(book, loss, lambda z: soft_assign_reference(z, book.codes, 0.02 * d).indices)


def _soft_vq(d: int, k: int) -> Layer:
    """softmax(z.p / T) p: Chen et al., "SoftVQ-VAE" (arXiv:2412.10958), section 3.2."""
    book = _Codes(d, k)

    def loss(z: Tensor) -> Tensor:
        q = torch.softmax(z @ book.codes.T / 0.07, -1)
        return (q @ book.codes).square().mean() - 0.01 * entropy_of(q.mean(0))

    return Layer(book, loss, lambda z: (z @ book.codes.T).argmax(-1))


def _peer(module: nn.Module) -> Layer:
    """A quantizer of vector-quantize-pytorch, which returns (quantized, ids[, loss])."""

    def loss(z: Tensor) -> Tensor:
        quantized, _, *rest = module.train()(z[None])
        return quantized.square().mean() + sum(part.sum() for part in rest)

    def ids(z: Tensor) -> Tensor:
        out: Any = module.eval()(z[None])
        return out[1][0]

    return Layer(module, loss, ids)


def _ema_vq(d: int, k: int) -> Layer:
    from vector_quantize_pytorch import VectorQuantize

    return _peer(VectorQuantize(dim=d, codebook_size=k))


def _sim_vq(d: int, k: int) -> Layer:
    from vector_quantize_pytorch import SimVQ

    return _peer(SimVQ(dim=d, codebook_size=k))


def fsq_levels(k: int) -> list[int]:
    """Scalar levels, 8 or 16 or fewer each, whose product is K; ValueError unless K is a power of 2."""
    bits = k.bit_length() - 1
    if k < 2 or 1 << bits != k:
        raise ValueError(f"FSQ takes powers of 2 here, not {k} codes")
    count = -(-bits // 3) if bits % 3 != 1 or bits < 4 else bits // 3
    return [1 << (bits // count + (i < bits % count)) for i in range(count)]


def _fsq(d: int, k: int) -> Layer:
    from vector_quantize_pytorch import FSQ

    return _peer(FSQ(levels=fsq_levels(k), dim=d))


PEERS = "vector_quantize_pytorch"
CANDIDATES: dict[str, Candidate] = {
    "ddcl": Candidate("DDCL", _ddcl),
    "plain": Candidate("DDCL, whole matrix", _plain, 48.0),
    "reference": Candidate("DDCL, by definition", _reference, 24.0, pair_depth=True),
    "softvq": Candidate("soft VQ, dot product", _soft_vq, 20.0),
    "vqvae": Candidate("VQ-VAE", _vqvae),
    "vqp-ema": Candidate("vector-quantize-pytorch: EMA VQ", _ema_vq, 32.0, package=PEERS),
    "vqp-simvq": Candidate("vector-quantize-pytorch: SimVQ", _sim_vq, 16.0, package=PEERS),
    "vqp-fsq": Candidate("vector-quantize-pytorch: FSQ", _fsq, package=PEERS),
}

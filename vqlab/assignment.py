"""The mathematics of DDCL soft assignment, as pure float32 (or float64) functions without state.

Tokens ``z`` (n, d), prototypes ``p`` (k, d), temperature ``T`` > 0:

    d_nk = ||z_n - p_k||^2                       squared_distances
    q_nk = softmax_k(-d_nk / T)                  boltzmann
    mu_n = sum_k q_nk p_k                        soft centroid
    L_q  = mean_n sum_k q_nk d_nk                expected distortion
    L_OLS = mean_n ||z_n - mu_n||^2
    V    = mean_n sum_k q_nk ||p_k - mu_n||^2    >= 0, and L_q = L_OLS + V exactly

Source: "Collapse-Free Prototype Readout Layer for Transformer Encoders" (DDCL-Attention, arXiv:2604.03850).

These functions hold the n x k matrix and are the reference; :mod:`vqlab.fused` computes the same figures in blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vqlab.precision import without_autocast


@dataclass(frozen=True)
class SoftAssignment:
    """What a DDCL layer computes for n tokens and k prototypes.

    centroid: mu (n, d).  variance: V_n (n,), the spread of the prototypes a token mixes.
    residual: ||z_n - mu_n||^2 (n,).  entropy: H(q_n) in nats (n,).  log_partition: log sum_k exp(-d_nk / T) (n,).
    mean_assignment: mean_n q_n (k,).  indices: argmax_k q_nk, the nearest prototype (n,), int64.
    """

    centroid: Tensor
    variance: Tensor
    residual: Tensor
    entropy: Tensor
    log_partition: Tensor
    mean_assignment: Tensor
    indices: Tensor

    @property
    def l_ols(self) -> Tensor:
        """L_OLS = mean_n ||z_n - mu_n||^2, the part VQ-VAE's commitment loss plays."""
        return self.residual.mean()

    @property
    def v(self) -> Tensor:
        """V = mean_n V_n >= 0, the anti-collapse part of the competitive loss."""
        return self.variance.mean()

    @property
    def l_q(self) -> Tensor:
        """L_q = L_OLS + V, the expected distortion (exact identity)."""
        return self.l_ols + self.v


def check_temperature(temperature: Tensor | float) -> None:
    """Refuse a temperature that is not a positive finite number (ValueError); inside `torch.compile` a tensor's value is not looked at."""
    if isinstance(temperature, Tensor) and torch.compiler.is_compiling():
        return  # a graph cannot branch on a value
    value = float(temperature.detach() if isinstance(temperature, Tensor) else temperature)
    if not (0.0 < value < float("inf")):
        raise ValueError(f"temperature must be a positive finite number, got {value}")


def squared_distances(z: Tensor, p: Tensor) -> Tensor:
    """||z_n - p_k||^2 by differences, free of cancellation: (n, d), (k, d) -> (n, k). For references and small inputs."""
    return (z[:, None, :] - p[None, :, :]).square().sum(-1)


def boltzmann(distances: Tensor, temperature: Tensor | float) -> Tensor:
    """q_nk = softmax_k(-d_nk / T): (n, k) -> (n, k)."""
    return torch.softmax(-distances / temperature, dim=-1)


def log_assignments(z: Tensor, p: Tensor, temperature: Tensor | float) -> Tensor:
    """log q_nk, for those who need the matrix itself: (n, d), (k, d) -> (n, k), by one product of matrices, in float32 or float64.

    ||z_n||^2 cancels in the softmax, and mean(p) is subtracted first, so that a common offset costs no digits.
    Raises ValueError for a temperature <= 0.
    """
    check_temperature(temperature)
    dtype = torch.promote_types(z.dtype, torch.float32)
    with without_autocast(z.device):
        z, p = z.to(dtype), p.to(dtype)
        centre = p.detach().mean(0)
        zc, pc = z - centre, p - centre
        return torch.log_softmax((2.0 * zc @ pc.T - pc.square().sum(-1)) / temperature, -1)


def soft_assign_reference(z: Tensor, p: Tensor, temperature: Tensor | float) -> SoftAssignment:
    """Every figure of the layer from its definition, holding the n x k matrix: (n, d), (k, d) -> SoftAssignment."""
    check_temperature(temperature)
    d = squared_distances(z, p)
    q = boltzmann(d, temperature)
    log_q = torch.log_softmax(-d / temperature, dim=-1)
    mu = q @ p
    return SoftAssignment(
        centroid=mu,
        variance=(q * squared_distances(mu, p)).sum(-1),
        residual=(z - mu).square().sum(-1),
        entropy=-(q * log_q).sum(-1),
        log_partition=torch.logsumexp(-d / temperature, dim=-1),
        mean_assignment=q.mean(0),
        indices=d.argmin(-1),
    )


def free_energy(log_partition: Tensor, temperature: Tensor | float) -> Tensor:
    """F = -T mean_n log sum_k exp(-d_nk / T): never rises under gradient flow in P at fixed T."""
    return -temperature * log_partition.mean()


def entropy_of(distribution: Tensor) -> Tensor:
    """Shannon entropy in nats of one distribution (k,); its gradient is finite where a share has underflowed to 0."""
    share = distribution.clamp_min(torch.finfo(distribution.dtype).tiny)
    return -(share * share.log()).sum()


def usage_penalty(mean_assignment: Tensor) -> Tensor:
    """log K - H(mean_n q_n) >= 0: zero iff all prototypes carry the same share of the tokens."""
    return math.log(mean_assignment.numel()) - entropy_of(mean_assignment)


def covariance(z: Tensor) -> Tensor:
    """Cov(z), normalised by n: (n, d) -> (d, d)."""
    centred = z - z.mean(0)
    return centred.T @ centred / max(z.shape[0], 1)


def critical_temperature(cov: Tensor) -> Tensor:
    """T_c = 4 lambda_max(Cov z): collapse of all prototypes repels under the full gradient of L_q iff T < T_c.

    Under the free energy (q held constant) the boundary is half of it, 2 lambda_max.
    """
    return 4.0 * torch.linalg.eigvalsh(cov.float())[-1]


@dataclass(frozen=True)
class Separation:
    """Distances between prototypes: `minimum` = S(P) = min_{j != k} ||p_j - p_k||, `nearest_mean` its mean over nearest neighbours."""

    minimum: Tensor
    nearest_mean: Tensor


def separation(p: Tensor, rows: int | None = None, block_elements: int = 1 << 20) -> Separation:
    """S(P) and the mean distance to the nearest other prototype: (k, d) -> Separation. One prototype: both infinite.

    rows: take the distances of so many evenly spaced prototypes to all others, instead of every prototype's; k^2 is much for large k.
    block_elements: how many distances are held at a time.
    """
    k = p.shape[0]
    if k == 1:
        infinite = torch.full((), math.inf, device=p.device)
        return Separation(infinite, infinite)
    # In float64 even nearly merged prototypes lose no digits to the expansion of the square; MPS has none.
    exact = p.to(torch.float32 if p.device.type == "mps" else torch.float64)
    centred = exact - exact.mean(0)
    half_square = 0.5 * centred.square().sum(-1)
    chosen = torch.arange(k, device=p.device)
    if rows is not None and rows < k:
        chosen = torch.arange(rows, device=p.device) * k // rows
    nearest = []
    for own in chosen.split(max(1, block_elements // k)):
        closeness = (centred[own] @ centred.T).sub_(half_square)
        closeness[torch.arange(own.numel(), device=p.device), own] = -math.inf
        distance = 2.0 * (half_square[own] - closeness.amax(-1))
        # What little rounding leaves between merged prototypes is taken by differences instead.
        close = (distance < 1e-9 * half_square.amax()).nonzero()[:, 0]
        if close.numel():
            other = closeness[close].argmax(-1)
            distance[close] = (centred[own[close]] - centred[other]).square().sum(-1)
        nearest.append(distance.clamp_min(0.0).sqrt())
    distances = torch.cat(nearest).to(p.dtype)
    return Separation(distances.min(), distances.mean())

"""Where the collapse of all prototypes begins to attract: the growth of a small disturbance, predicted and measured.

Put K prototypes at the mean of the tokens and move them apart by small delta_k, sum_k delta_k = 0, along the leading eigenvector of
Cov(z). Under gradient flow at temperature T (DDCL-Attention, arXiv:2604.03850, and docs/method.md),

    d delta / dt = (2/K) (a lambda_max / T - 1) delta        a = 4 for L_q,  a = 2 for the free energy F (q held constant)

so that they separate if and only if T / lambda_max < a. Tokens are fixed here: the boundary is a property of the loss alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from vqlab.assignment import boltzmann, covariance, soft_assign_reference, squared_distances

#: What is differentiated, and the boundary a = T_c / lambda_max that the second-order expansion predicts for it.
PREDICTED = {"L_q": 4.0, "F": 2.0}


@dataclass(frozen=True)
class PhaseBoundary:
    """rates: one row per objective and T / lambda_max: `predicted` and `measured` growth rate in units of 2/K.  found: the ratio where the
    measured rate changes its sign, per objective; NaN where it does not within the ratios."""

    rates: pd.DataFrame
    found: dict[str, float]


def objective(name: str, z: Tensor, p: Tensor, temperature: float) -> Tensor:
    """L_q, or a loss whose gradient is F's: L_q with q held constant."""
    if name == "L_q":
        return soft_assign_reference(z, p, temperature).l_q
    distances = squared_distances(z, p)
    return (boltzmann(distances, temperature).detach() * distances).sum(-1).mean()


def growth_rate(name: str, z: Tensor, ratio: float, prototypes: int, steps: int = 40, size: float = 1e-5) -> float:
    """Rate of a disturbance of this size along the leading eigenvector, in units of 2/K: z (n, d) float64, ratio = T / lambda_max."""
    cov = covariance(z)
    values, vectors = torch.linalg.eigh(cov)
    scale, axis = values[-1].sqrt(), vectors[:, -1]
    offsets = torch.linspace(-1.0, 1.0, prototypes, dtype=z.dtype)
    p = z.mean(0) + size * scale * (offsets - offsets.mean())[:, None] * axis
    step = 0.1 * prototypes / 2  # a time step of 0.1 in units of K/2

    def spread(p: Tensor) -> float:
        return float((p - p.mean(0)).norm())

    start, done = spread(p), 0
    # The prediction is for small disturbances: one that has grown a hundredfold is about to leave that regime.
    while done < steps and spread(p) < 100 * start:
        p = p.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(objective(name, z, p, ratio * float(values[-1])), [p])
        p = p.detach() - step * gradient
        done += 1
    # A rate r multiplies by 1 + 0.1 r at each step.
    return ((spread(p) / start) ** (1 / done) - 1) / 0.1


def measure_phase_boundary(z: Tensor, ratios: list[float], prototypes: int = 8) -> PhaseBoundary:
    """Growth rates at all ratios T / lambda_max for tokens z (n, d)."""
    z = z.double()
    rows, found = [], {}
    for name, a in PREDICTED.items():
        measured = [growth_rate(name, z, ratio, prototypes) for ratio in ratios]
        rows += [
            {"objective": name, "T / lambda_max": ratio, "predicted": a / ratio - 1, "measured": rate}
            for ratio, rate in zip(ratios, measured, strict=True)
        ]
        found[name] = _zero(ratios, measured)
    return PhaseBoundary(pd.DataFrame(rows), found)


def _zero(x: list[float], y: list[float]) -> float:
    """Where a falling curve crosses 0, linear in 1/x, in which the predicted rate is linear."""
    inverse, order = 1 / np.asarray(x), np.argsort(y)
    values = np.asarray(y)[order]
    if values[0] > 0 or values[-1] < 0:
        return float("nan")
    return float(1 / np.interp(0.0, values, inverse[order]))

"""Clusters against classes, and DDCL as a clustering of vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vqlab.assignment import critical_temperature, separation
from vqlab.experiments.intervals import Labels, Metric
from vqlab.readout import DDCLReadout


def _contingency(labels: Labels, clusters: Labels) -> NDArray[np.int64]:
    table = np.zeros((int(clusters.max()) + 1, int(labels.max()) + 1), dtype=np.int64)
    np.add.at(table, (clusters, labels), 1)
    return table


def hungarian_accuracy(labels: Labels, clusters: Labels) -> float:
    """Share of items in the class that their cluster stands for, under the best one-to-one mapping of clusters to classes."""
    from scipy.optimize import linear_sum_assignment

    table = _contingency(labels, clusters)
    rows, columns = linear_sum_assignment(table, maximize=True)
    return float(table[rows, columns].sum() / len(labels))


def purity(labels: Labels, clusters: Labels) -> float:
    """Share of items in the commonest class of their cluster; the figure for more clusters than classes, never below Hungarian's."""
    return float(_contingency(labels, clusters).max(1).sum() / len(labels))


def mutual_information(labels: Labels, clusters: Labels) -> float:
    """Normalised mutual information, 0 for independent, 1 for equal partitions."""
    from sklearn.metrics import normalized_mutual_info_score

    return float(normalized_mutual_info_score(labels, clusters))


def rand_index(labels: Labels, clusters: Labels) -> float:
    """Rand index adjusted for chance."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(labels, clusters))


CLUSTER_METRICS: Mapping[str, Metric] = {
    "accuracy (Hungarian)": hungarian_accuracy,
    "purity": purity,
    "NMI": mutual_information,
    "ARI": rand_index,
}


@dataclass(frozen=True)
class DDCLClusters:
    """A trained clustering. clusters: (n,) of the given vectors.  prototypes: (K, d) in the space of the vectors.
    history: per step V, L_q, L_OLS, margin, `separation` S(P), `used` share of prototypes, each a list.
    """

    readout: DDCLReadout
    clusters: Labels
    prototypes: Tensor
    history: dict[str, list[float]]


def fit_ddcl(
    vectors: Tensor, codebook_size: int, seed: int, steps: int = 300, *, lr: float = 0.05, init: str = "data", **settings: Any
) -> DDCLClusters:
    """Minimise L_q of one DDCL layer on vectors (n, d), the whole set at every step, while the temperature cools.

    lr: in standard deviations of a channel.  settings: of `DDCLCodebook`; by default tau from 0.5 down to 0.02.

    Prototypes that have become equal get equal gradients and would stay so when cooling lets them part; small noise at every step
    separates them, as in deterministic annealing (Rose, "Deterministic Annealing for Clustering, Compression, Classification,
    Regression, and Related Optimization Problems", Proc. IEEE 1998).
    """
    torch.manual_seed(seed)
    options = {"tau_start": 0.5, "tau_end": 0.02, "loss_weight": float(vectors.shape[1]), **settings}
    readout = DDCLReadout(vectors.shape[1], codebook_size, normalize=False, init=init, **options)
    readout.prepare(steps)
    history: dict[str, list[float]] = {name: [] for name in ("V", "L_q", "L_OLS", "margin", "separation", "used")}
    batch = vectors.float()[None]
    readout(batch)  # prototypes from the data, and the covariance, which does not change any more
    readout.eval()
    scale = float(readout.codebook.covariance.trace() / vectors.shape[1]) ** 0.5
    optimizer = torch.optim.Adam(readout.codebook_parameters(), lr=lr * scale)
    critical = float(critical_temperature(readout.codebook.covariance))
    for _ in range(steps):
        out = readout(batch)
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()
        readout.after_step()
        with torch.no_grad():
            readout.codebook.prototypes.add_(1e-3 * scale * torch.randn(readout.codebook.prototypes.shape))
        history["margin"].append(critical / float(out.parts["temperature"]))
        for name in ("V", "L_q", "L_OLS"):
            history[name].append(float(out.parts[name]))
        history["separation"].append(float(separation(readout.codebook.prototypes.detach()).minimum))
        history["used"].append(out.indices.unique().numel() / codebook_size)
    return DDCLClusters(readout, predict(readout, vectors), readout.codebook.prototypes.detach().clone(), history)


@torch.no_grad()
def predict(readout: DDCLReadout, vectors: Tensor) -> Labels:
    """Nearest prototype of each vector (n, d) -> (n,)."""
    return readout.eval().codebook.encode(readout.space.enter(vectors.float())).numpy()

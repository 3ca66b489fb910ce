"""Regimes of orbits as clusters: DDCL against k-means, a Gaussian mixture and the constant guess."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from vqlab.data.orbital import OrbitData, load_orbits
from vqlab.experiments.clustering import CLUSTER_METRICS, DDCLClusters, fit_ddcl, hungarian_accuracy
from vqlab.experiments.extra import needs_extra
from vqlab.experiments.intervals import Interval, Labels, bootstrap, over_seeds
from vqlab.experiments.report import Claim, Report, Settings, Verdict
from vqlab.results.style import panels, save

PAPER_DDCL, PAPER_KMEANS = 0.772, 0.756
KMEANS = "k-means, best of 10 starts"
#: Starts and temperatures of DDCL; tau is the temperature over the variance of the features. Cold ones tend to k-means.
VARIANTS: dict[str, dict[str, Any]] = {
    "DDCL, tau 0.02": {"init": "kmeans", "tau_start": 0.1, "tau_end": 0.02},
    "DDCL, tau 0.1": {"init": "kmeans", "tau_start": 0.1, "tau_end": 0.1},
    "DDCL, tau 0.2": {"init": "kmeans", "tau_start": 0.2, "tau_end": 0.2},
    "DDCL, tau 0.02, starts from single orbits": {"init": "data", "tau_start": 0.5, "tau_end": 0.02},
}


def standardised(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Columns to mean 0, variance 1; a constant column becomes 0."""
    scale = x.std(0)
    return (x - x.mean(0)) / np.where(scale > 0, scale, 1.0)


def cluster_all(x: NDArray[np.float64], k: int, seeds: int, steps: int) -> tuple[dict[str, list[Labels]], list[DDCLClusters]]:
    """Clusters of standardised features by every method, one per seed, and the DDCL layers at the highest temperature."""
    with needs_extra():
        from sklearn.cluster import KMeans
        from sklearn.mixture import GaussianMixture

    vectors = torch.from_numpy(x).float()
    fits = {name: [fit_ddcl(vectors, k, seed, steps, **options) for seed in range(seeds)] for name, options in VARIANTS.items()}
    found = {name: [fit.clusters for fit in own] for name, own in fits.items()}
    found |= {
        "k-means, one start": [KMeans(k, n_init=1, random_state=seed).fit_predict(x) for seed in range(seeds)],
        "k-means, best of 10 starts": [KMeans(k, n_init=10, random_state=seed).fit_predict(x) for seed in range(seeds)],
        "Gaussian mixture": [GaussianMixture(k, random_state=seed, reg_covar=1e-4).fit_predict(x) for seed in range(seeds)],
    }
    found["constant guess"] = [np.zeros(len(x), dtype=np.int64)]
    return {name: [np.asarray(c, dtype=np.int64) for c in clusters] for name, clusters in found.items()}, fits["DDCL, tau 0.2"]


def confusion(data: OrbitData, clusters: Labels) -> pd.DataFrame:
    """Orbits of each class (rows) in each cluster (columns)."""
    table = pd.crosstab(np.asarray(data.classes)[data.labels], clusters)
    table.columns = [f"cluster {c}" for c in table.columns]
    return table.rename_axis("regime").reset_index()


def picture(data: OrbitData, fit: DDCLClusters, x: NDArray[np.float64]) -> Figure:
    """Orbits in the (a, e) and (a, i) planes, coloured by cluster; where a prototype stands is the q-weighted mean of the elements."""
    figure, axes = panels(2)
    with torch.no_grad():
        q = fit.readout.eval()(torch.from_numpy(x).float()[None]).assignment[0].double().numpy()
    centres = q.T @ data.elements / q.sum(0)[:, None].clip(1e-12)
    shown = np.random.default_rng(0).permutation(len(data))[:4000]
    for axis, column, label in zip(axes, (1, 2), ("eccentricity", "inclination (degrees)"), strict=True):
        a = data.elements[:, 0] / 1000
        axis.scatter(a[shown], data.elements[shown, column], c=fit.clusters[shown], cmap="tab10", vmin=0, vmax=9, s=3, linewidths=0)
        axis.scatter(
            centres[:, 0] / 1000, centres[:, column], c=range(len(centres)), cmap="tab10", vmin=0, vmax=9, s=90, marker="X", ec="k"
        )
        axis.set_xscale("log")
        axis.set_xlabel("semi-major axis (1000 km)")
        axis.set_ylabel(label)
    return figure


def run(settings: Settings) -> Report:
    """Cluster the orbits by a, e, i and by all numeric columns; tables, confusion and a picture."""
    data = load_orbits(settings.data)
    if settings.quick:
        keep = np.random.default_rng(0).permutation(len(data))[:1500]
        data = OrbitData(data.elements[keep], data.features[keep], data.columns, data.labels[keep], data.classes, data.source)
    steps, resamples = (40, 20) if settings.quick else (150, 100)
    k = len(data.classes)
    report = Report("orbital", "regimes of orbits as clusters")
    counts = ", ".join(f"{name} {count}" for name, count in zip(data.classes, np.bincount(data.labels, minlength=k), strict=True))
    report.notes.append(f"{len(data)} orbits from {data.source}: {counts}; K = {k}, {settings.seeds} seeds, features standardised")
    sets = {
        "a, e, i": standardised(data.elements),
        "log a, e, i": standardised(np.column_stack([np.log(data.elements[:, 0]), data.elements[:, 1:]])),
        f"all {len(data.columns)} numeric columns": standardised(data.features),
    }
    scores: dict[tuple[str, str], Interval] = {}
    seed_accuracy: dict[tuple[str, str], list[float]] = {}
    for name, x in sets.items():
        found, fits = cluster_all(x, k, settings.seeds, steps)
        rows = []
        for method, clusters in found.items():
            intervals = {m: bootstrap(f, data.labels, clusters, resamples) for m, f in CLUSTER_METRICS.items()}
            scores[name, method] = intervals["accuracy (Hungarian)"]
            seed_accuracy[name, method] = [hungarian_accuracy(data.labels, c) for c in clusters]
            rows.append({"method": method, **{m: str(i) for m, i in intervals.items()}})
        report.tables[f"features {name}"] = pd.DataFrame(rows)
        report.tables[f"confusion of DDCL, tau 0.2, seed 0, features {name}"] = confusion(data, fits[0].clusters)
        figure = save(picture(data, fits[0], x), settings.out / "orbital" / f"prototypes-{list(sets).index(name)}.png")
        report.figures.append(Path(figure))
    report.claims.append(_claim(sets, scores, seed_accuracy))
    return report


def _claim(
    sets: dict[str, NDArray[np.float64]], scores: dict[tuple[str, str], Interval], seeds: dict[tuple[str, str], list[float]]
) -> Claim:
    ours, above = [], []
    for name in sets:
        kmeans = scores[name, KMEANS]
        for variant in VARIANTS:
            difference = over_seeds(np.subtract(seeds[name, variant], seeds[name, KMEANS]).tolist())
            above.append(difference.value > 0 and not difference.low <= 0)
        shown = ", ".join(f"{variant.removeprefix('DDCL, ')}: {scores[name, variant]}" for variant in VARIANTS)
        ours.append(f"{name}: {shown}, k-means {kmeans}")
    constant = scores[next(iter(sets)), "constant guess"]
    verdict: Verdict = "agrees" if all(above) else "partly" if 2 * sum(above) >= len(above) else "disagrees"
    return Claim(
        "orbital regimes: accuracy above k-means",
        f"{PAPER_DDCL} against {PAPER_KMEANS}",
        "; ".join(ours),
        verdict,
        f"above k-means in {sum(above)} of {len(above)} settings; the constant guess scores {constant}",
    )

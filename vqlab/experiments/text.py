"""DDCL as a readout of a frozen text encoder: clusters of documents without labels, classification with them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from vqlab.data.text import TextData, load_texts
from vqlab.errors import VqlabError
from vqlab.experiments.classify import Fit, FitOptions, fit_classifier, linear_reference, mean_vectors
from vqlab.experiments.clustering import CLUSTER_METRICS, DDCLClusters, fit_ddcl, predict
from vqlab.experiments.encoders import TextEncoder, load_text_encoder
from vqlab.experiments.extra import needs_extra
from vqlab.experiments.features import TokenFeatures, cached_features
from vqlab.experiments.interpret import prototype_tokens, tokens_figure
from vqlab.experiments.intervals import Interval, Labels, accuracy, as_labels, bootstrap
from vqlab.experiments.report import Claim, Report, Settings, Verdict
from vqlab.readout import DDCLReadout
from vqlab.results.style import REFERENCE, colour, draw, panels, save, styled

#: Accuracies of clusters that the paper reports, with the K of its clusters.
PAPER = {"sst2": (0.867, 2), "imdb": (0.913, 4), "20news": (0.175, 20)}


@dataclass(frozen=True)
class Plan:
    """How much of a collection is used: tokens per text, texts of each split (None: all), prototypes of the supervised readout."""

    max_tokens: int
    train: int | None
    test: int | None
    prototypes: int
    epochs: int


PLANS = {
    "sst2": Plan(64, 3000, None, 32, 3),
    "20news": Plan(48, 2000, 1000, 64, 3),
    "imdb": Plan(64, 600, 600, 32, 3),
}
#: Tokens that clusters of tokens are fitted on.
TOKENS = 5000
QUICK = Plan(24, 300, 200, 16, 2)
METHODS = ("cls", "mean", "max", "attention", "slot", "perceiver", "netvlad", "kmeans", "ddcl")


@dataclass(frozen=True)
class Features:
    """Hidden states of both splits of a collection, and what they were made from."""

    data: TextData
    train: TokenFeatures
    test: TokenFeatures


def features_of(name: str, plan: Plan, encoder: TextEncoder, data: Path | None, cache: Path) -> Features:
    """Hidden states of a balanced subset of each split, from the cache where they are known."""
    texts = load_texts(name, data)
    parts = [
        cached_features(encoder, split.subset(size), plan.max_tokens, cache, f"{name}-{kind}")
        for kind, split, size in (("train", texts.train, plan.train), ("test", texts.test, plan.test))
    ]
    return Features(texts, *parts)


# -- without labels --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clustering:
    """Clusters of the test texts by each method, one (n,) per seed, and the DDCL layers on pooled vectors."""

    found: dict[str, list[Labels]]
    fits: list[DDCLClusters]


def cluster_texts(features: Features, k: int, seeds: int, steps: int) -> Clustering:
    """Fit on the training texts, assign the test texts; mean-pooled vectors of length 1, and tokens with a vote per text."""
    with needs_extra():
        from sklearn.cluster import KMeans, MiniBatchKMeans

    train, test = (torch.nn.functional.normalize(mean_vectors(part), dim=1) for part in (features.train, features.test))
    fits = [fit_ddcl(train, k, seed, steps) for seed in range(seeds)]
    found: dict[str, list[Labels]] = {
        "DDCL on pooled vectors": [predict(fit.readout, test) for fit in fits],
        "DDCL on pooled vectors, k-means start": [
            predict(fit_ddcl(train, k, seed, steps, init="kmeans", tau_start=0.1).readout, test) for seed in range(seeds)
        ],
        "k-means on pooled vectors": [
            as_labels(KMeans(k, n_init=10, random_state=seed).fit(train.numpy()).predict(test.numpy())) for seed in range(seeds)
        ],
    }
    sample = features.train.states[torch.randperm(len(features.train.states), generator=torch.Generator().manual_seed(0))[:TOKENS]].float()
    by_ddcl = [fit_ddcl(sample, k, seed, steps // 2).readout for seed in range(seeds)]
    found["DDCL on tokens, largest share of a text"] = [_vote(features.test, predict(fit, features.test.states), k) for fit in by_ddcl]
    by_kmeans = [MiniBatchKMeans(k, n_init=3, random_state=seed).fit(sample.numpy()) for seed in range(seeds)]
    found["k-means on tokens, largest share of a text"] = [
        _vote(features.test, as_labels(fit.predict(features.test.states.float().numpy())), k) for fit in by_kmeans
    ]
    return Clustering(found, fits)


def _vote(features: TokenFeatures, clusters: Labels, k: int) -> Labels:
    """The commonest cluster among each text's tokens."""
    which = torch.arange(len(features)).repeat_interleave(features.lengths)
    counts = torch.zeros(len(features), k).index_put_((which, torch.from_numpy(clusters)), torch.ones(1), accumulate=True)
    return as_labels(counts.argmax(1))


# -- with labels -----------------------------------------------------------------------------------------------------------------


def classify_texts(features: Features, plan: Plan, seeds: int) -> dict[str, list[Fit]]:
    """Every pooling with the same linear head and training, one fit per seed."""
    options = FitOptions(classes=len(features.data.classes), prototypes=plan.prototypes, epochs=plan.epochs)
    return {method: [fit_classifier(method, features.train, features.test, options, seed) for seed in range(seeds)] for method in METHODS}


# -- the experiment --------------------------------------------------------------------------------------------------------------


def run(settings: Settings) -> Report:
    """All collections that can be had; VqlabError if none can."""
    encoder = load_text_encoder(settings.encoder)
    report = Report("text", "readout of a frozen text encoder")
    report.notes.append(f"encoder: {encoder.name}, {encoder.dim} channels, frozen; {settings.seeds} seeds")
    print(report.notes[0], flush=True)
    failures = []
    for name, plan in PLANS.items():
        try:
            features = features_of(name, QUICK if settings.quick else plan, encoder, settings.data, settings.cache)
        except VqlabError as error:
            failures.append(str(error))
            continue
        _one_collection(name, features, settings, encoder, report)
    if len(failures) == len(PLANS):
        raise VqlabError("; ".join(failures))
    report.notes += [f"left out: {reason}" for reason in failures]
    return report


def _one_collection(name: str, features: Features, settings: Settings, encoder: TextEncoder, report: Report) -> None:
    plan, resamples = (QUICK, 20) if settings.quick else (PLANS[name], 100)
    labels = as_labels(features.test.labels)
    tokens = len(features.train.states) + len(features.test.states)
    report.notes.append(
        f"{name}: {len(features.train)} training and {len(features.test)} test texts from {features.data.source}, "
        f"at most {plan.max_tokens} tokens each, {tokens} in all"
    )

    published, paper_k = PAPER[name]
    clustered: dict[int, dict[str, Interval]] = {}
    for k in sorted({len(features.data.classes), paper_k}):
        clustering = cluster_texts(features, k, settings.seeds, 60 if settings.quick else 150)
        rows = []
        for method, clusters in clustering.found.items():
            figures = {m: bootstrap(f, labels, clusters, resamples) for m, f in CLUSTER_METRICS.items()}
            clustered.setdefault(k, {})[method] = figures["purity" if k > len(features.data.classes) else "accuracy (Hungarian)"]
            rows.append({"method": method, **{m: str(i) for m, i in figures.items()}})
        report.tables[f"{name}: clusters without labels, K = {k}"] = pd.DataFrame(rows)
    report.figures.append(save(_history_figure(clustering.fits[0]), settings.out / "text" / f"{name}-training.png"))
    report.claims.append(_cluster_claim(name, published, paper_k, clustered[paper_k]))

    fits = classify_texts(features, plan, settings.seeds)
    reference = bootstrap(accuracy, labels, [linear_reference(features.train, features.test)], resamples)
    scores = {method: bootstrap(accuracy, labels, [fit.predictions for fit in runs], resamples) for method, runs in fits.items()}
    report.tables[f"{name}: classification, linear head, K = {plan.prototypes}"] = pd.DataFrame(
        [
            {
                "pooling": m,
                "accuracy": str(scores[m]),
                "trained parameters": runs[0].parameters,
                "seconds": np.mean([r.seconds for r in runs]),
            }
            for m, runs in fits.items()
        ]
        + [{"pooling": "logistic regression on the mean", "accuracy": str(reference), "trained parameters": "", "seconds": ""}]
    )
    best = clustered[paper_k]["k-means on pooled vectors"]
    report.claims.append(_readout_claim(name, scores["ddcl"], reference, best))

    readout = fits["ddcl"][0].network.pooling
    assert isinstance(readout, DDCLReadout)
    found = prototype_tokens(readout, features.test, encoder, per_prototype=4)
    report.tables[f"{name}: tokens nearest to each prototype, in context"] = found
    report.figures.append(save(tokens_figure(found), settings.out / "text" / f"{name}-prototypes.png"))
    worst = min(min(fit.history["V"]) for fit in fits["ddcl"])
    error = max(
        abs(q - o - v) / q for fit in fits["ddcl"] for q, o, v in zip(*(fit.history[n] for n in ("L_q", "L_OLS", "V")), strict=True)
    )
    report.notes.append(f"{name}: smallest V over all steps and seeds {worst:.3g}; largest |L_q - L_OLS - V| / L_q {error:.1g}")


def _cluster_claim(name: str, published: float, k: int, figures: dict[str, Interval]) -> Claim:
    ddcl, kmeans = figures["DDCL on pooled vectors"], figures["k-means on pooled vectors"]
    verdict: Verdict = "agrees" if ddcl.low > kmeans.high else "disagrees" if ddcl.value < kmeans.value else "partly"
    return Claim(
        f"{name}, no labels, K = {k}: DDCL above k-means",
        f"{published:.3f}",
        f"DDCL {ddcl}, k-means {kmeans}",
        verdict,
        "intervals overlap" if verdict == "partly" else "",
    )


def _readout_claim(name: str, ddcl: Interval, reference: Interval, kmeans: Interval) -> Claim:
    near = ddcl.value > reference.value - 0.02
    return Claim(
        f"{name}, labels: readout above k-means and near logistic regression",
        "above k-means, near logistic regression",
        f"DDCL {ddcl}, logistic regression {reference}, k-means clusters {kmeans}",
        "agrees" if near and ddcl.low > kmeans.high else "partly" if ddcl.low > kmeans.high else "disagrees",
        "near: at most 2 points below",
    )


@styled
def _history_figure(fit: DDCLClusters) -> Figure:
    figure, axes = panels(3, columns=3)
    for axis, name, label in zip(axes, ("V", "separation", "margin"), ("V", "separation S(P)", "margin $T_c / T$"), strict=True):
        draw(axis, np.arange(len(fit.history[name])), fit.history[name], color=colour("ddcl"))
        axis.set_xlabel("step")
        axis.set_ylabel(label)
        if name == "margin":
            axis.axhline(1.0, color=REFERENCE, lw=0.8)
            axis.set_yscale("log")
    return figure

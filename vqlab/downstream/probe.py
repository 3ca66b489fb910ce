"""How much of an image's class its tokens tell: a linear and a nearest-neighbour classifier on fixed vectors, by scikit-learn.

The linear probe is the usual test of a representation (Alain and Bengio, "Understanding intermediate layers using linear classifier
probes", arXiv:1610.01644); its strength of regularization is chosen on held-out training images, never on test images.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vqlab.data import ImageData, ImageSplit, Split, all_images
from vqlab.downstream.features import FEATURES, Vectors, available_features, image_features
from vqlab.errors import VqlabError
from vqlab.optional import require
from vqlab.progress import progress
from vqlab.tokenizer import Tokenizer

#: What needs no tokenizer: the floors that tokens have to beat.
FLOORS = ("pixels", "pca")
PCA_COMPONENTS = 128
#: L2 penalties per training image, from weak to strong.
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
SELECTION_IMAGES = 5000
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class ProbeResult:
    """Accuracies in [0, 1] on the test split of one kind of vector; `penalty` is the chosen strength of regularization."""

    dimensions: int
    linear: float
    knn: float
    penalty: float


@dataclass(frozen=True)
class ProbeReport:
    """Results by the vectors' names, and what they were measured on."""

    data: str
    train_images: int
    test_images: int
    classes: int
    neighbours: int
    features: dict[str, ProbeResult]

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""
        return asdict(self)


def probe(
    tokenizer: Tokenizer,
    data: ImageData,
    *,
    names: Sequence[str] = (),
    train_images: int | None = None,
    neighbours: int = 20,
    iterations: int = 100,
    batch_size: int = 500,
) -> ProbeReport:
    """Accuracies of the vectors `names` (default: the floors and all that the tokenizer can give) on the labels of `data`.

    train_images: use only so many training images, the first ones.  neighbours: k of k-NN (majority, Euclidean distance).  iterations: most
    steps of the linear classifier's optimizer (L-BFGS).
    Raises VqlabError for an unknown name, images that the tokenizer would pad, one class alone, fewer images than classes or neighbours, or
    where scikit-learn is missing.
    """
    require("sklearn", "downstream", "vqlab probe")
    chosen = tuple(names) or (*FLOORS, *available_features(tokenizer))
    for name in chosen:
        if name not in FLOORS and name not in FEATURES:
            raise VqlabError(f"unknown feature {name!r}: choose from {', '.join((*FLOORS, *FEATURES))}")
    if len(data.classes) < 2:
        raise VqlabError(f"{data.name} has one class, so that there is nothing to tell apart")
    train = _first(data.train, train_images)
    needed = max(neighbours, 2 * len(data.classes))
    if len(train) < needed or neighbours < 1 or iterations < 1:
        raise VqlabError(f"{len(train)} training images, {neighbours} neighbours, {iterations} iterations: need at least {needed}, 1 and 1")
    own = [name for name in chosen if name not in FLOORS]
    vectors = [_vectors(tokenizer, split, own, batch_size) for split in (train, data.test)]
    if set(FLOORS) & set(chosen):
        for found, split in zip(vectors, (train, data.test), strict=True):
            found["pixels"] = all_images(split).flatten(1).numpy().astype(np.float32) / np.float32(255)
    if "pca" in chosen:
        vectors[0]["pca"], vectors[1]["pca"] = _principal_components(vectors[0]["pixels"], vectors[1]["pixels"])
    labels, test_labels = train.labels.numpy(), data.test.labels.numpy()
    results = {
        name: probe_vectors(vectors[0][name], labels, vectors[1][name], test_labels, neighbours=neighbours, iterations=iterations)
        for name in progress(chosen, "fit", unit="feature")
    }
    return ProbeReport(data.name, len(train), len(data.test), len(data.classes), neighbours, results)


def probe_vectors(
    train: Vectors, labels: Labels, test: Vectors, test_labels: Labels, *, neighbours: int = 20, iterations: int = 100
) -> ProbeResult:
    """Accuracy on `test` (m, d) of classifiers fitted to `train` (n, d) with `labels` (n,)."""
    from sklearn.neighbors import KNeighborsClassifier

    # k-NN keeps the vectors' own scale, which distances between codes and between shares of codes have; the linear one is free of it.
    knn = KNeighborsClassifier(neighbours, algorithm="brute").fit(train, labels)
    mean, scale = train.mean(0), train.std(0)
    scale[scale < 1e-6] = 1.0  # a code that no training image uses
    train, test = (train - mean) / scale, (test - mean) / scale
    penalty = _choose_penalty(train, labels, iterations)
    linear = _fit_linear(train, labels, penalty, iterations)
    return ProbeResult(
        dimensions=train.shape[1],
        linear=float(linear.score(test, test_labels)),
        knn=float(knn.score(test * scale + mean, test_labels)),
        penalty=penalty,
    )


def _choose_penalty(vectors: Vectors, labels: Labels, iterations: int) -> float:
    """The penalty that is best on a held-out fifth of the first SELECTION_IMAGES training images."""
    count = min(len(vectors), SELECTION_IMAGES)
    held = np.arange(count) % 5 == 4
    inside, outside = np.flatnonzero(~held), np.flatnonzero(held)
    scores = [
        _fit_linear(vectors[inside], labels[inside], penalty, iterations).score(vectors[outside], labels[outside]) for penalty in PENALTIES
    ]
    return PENALTIES[int(np.argmax(scores))]


def _fit_linear(vectors: Vectors, labels: Labels, penalty: float, iterations: int) -> Any:
    """Softmax regression with an L2 penalty per image: mean cross-entropy + penalty / 2 ||w||^2."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=1 / (penalty * len(vectors)), max_iter=iterations, tol=1e-3)
    with warnings.catch_warnings():  # stopping early is part of the protocol
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(vectors, labels)


def _principal_components(train: Vectors, test: Vectors) -> tuple[Vectors, Vectors]:
    from sklearn.decomposition import PCA

    pca = PCA(min(PCA_COMPONENTS, *train.shape), svd_solver="covariance_eigh" if len(train) > train.shape[1] else "full").fit(train)
    return pca.transform(train), pca.transform(test)


def _vectors(tokenizer: Tokenizer, split: Split, names: Sequence[str], batch_size: int) -> dict[str, Vectors]:
    return image_features(tokenizer, split, names, batch_size) if names else {}


def _first(split: Split, count: int | None) -> Split:
    if count is None:
        return split
    if not 1 <= count <= len(split):
        raise VqlabError(f"train_images must lie in 1..{len(split)}, got {count}")
    return ImageSplit(split.plain(torch.arange(count)), split.labels[:count])

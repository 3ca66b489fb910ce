"""One linear head on any pooling of frozen tokens, the same training for all."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from vqlab.experiments.extra import needs_extra
from vqlab.experiments.features import TokenFeatures
from vqlab.experiments.intervals import Labels, as_labels
from vqlab.readout import POOLINGS, DDCLReadout
from vqlab.readout.pooling import Pool


@dataclass(frozen=True)
class FitOptions:
    """Training of a head. prototypes: K of every pooling that has a bank.  lr: of everything but DDCL's prototypes, which learn at
    lr / epsilon.  codebook_dim: width of the learned projection before every pooling that learns, DDCL's own included."""

    classes: int
    prototypes: int = 32
    epochs: int = 5
    batch_size: int = 64
    lr: float = 2e-3
    epsilon: float = 0.1
    codebook_dim: int = 64


@dataclass(frozen=True)
class Fit:
    """A trained head. predictions: (n,) on the test split.  history: DDCL's figures at each step.  parameters: number trained."""

    predictions: Labels
    seconds: float
    parameters: int
    network: TokenClassifier
    history: dict[str, list[float]] = field(default_factory=dict)


class KMeansPool(Pool):
    """Share of a sequence's tokens nearest to each k-means centre (a bag of visual words), (b, K); the centres are fitted before."""

    centres: Tensor

    def __init__(self, dim: int, codebook_size: int = 32) -> None:
        super().__init__(dim, codebook_size)
        self.register_buffer("centres", torch.zeros(codebook_size, dim))

    def fit(self, features: TokenFeatures, seed: int, sample: int = 20000) -> None:
        """k-means by scikit-learn on a sample of the tokens."""
        with needs_extra():
            from sklearn.cluster import MiniBatchKMeans

        rows = torch.randperm(len(features.states), generator=torch.Generator().manual_seed(seed))[:sample]
        fit = MiniBatchKMeans(len(self.centres), n_init=3, random_state=seed).fit(features.states[rows].float().numpy())
        self.centres.copy_(torch.from_numpy(fit.cluster_centers_))

    def pool(self, tokens: Tensor, mask: Tensor) -> Tensor:
        nearest = torch.cdist(tokens, self.centres).argmin(-1)
        chosen = nn.functional.one_hot(nearest, len(self.centres)) * mask[..., None]
        return chosen.sum(1) / mask.sum(1, keepdim=True)


class TokenClassifier(nn.Module):
    """Projection (where given), pooling, normalisation, linear head: tokens (b, n, dim), mask (b, n) -> logits (b, classes).

    `loss` is the readout's own, of the last batch, and `parts` its figures.
    """

    def __init__(self, pooling: Pool | DDCLReadout, classes: int, project: nn.Module | None = None) -> None:
        super().__init__()
        self.project = nn.Identity() if project is None else project
        self.pooling = pooling
        width = pooling.dim if isinstance(pooling, DDCLReadout) else pooling.out_dim
        self.head = nn.Sequential(nn.BatchNorm1d(width), nn.Linear(width, classes))
        self.loss: Tensor = torch.zeros(())
        self.parts: dict[str, Tensor] = {}

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        if isinstance(self.pooling, DDCLReadout):
            out = self.pooling(tokens, mask)
            self.loss, self.parts = out.loss, out.parts
            return self.head(out.pooled)
        return self.head(self.pooling(self.project(tokens), mask))


def build_classifier(method: str, dim: int, options: FitOptions) -> TokenClassifier:
    """The pooling `method` ("ddcl", "kmeans" or a name of POOLINGS) with a head."""
    width = min(options.codebook_dim, dim)
    if method == "ddcl":
        return TokenClassifier(DDCLReadout(dim, options.prototypes, codebook_dim=width), options.classes)
    if method in ("cls", "mean", "max"):
        return TokenClassifier(POOLINGS[method](dim), options.classes)
    if method == "kmeans":
        return TokenClassifier(KMeansPool(dim, options.prototypes), options.classes)
    return TokenClassifier(POOLINGS[method](width, options.prototypes), options.classes, nn.Linear(dim, width))


def optimizer_of(network: TokenClassifier, lr: float, epsilon: float) -> torch.optim.Optimizer:
    """AdamW; DDCL's prototypes at lr / epsilon without decay."""
    prototypes = network.pooling.codebook_parameters() if isinstance(network.pooling, DDCLReadout) else []
    own = {id(p) for p in prototypes}
    rest = [p for p in network.parameters() if id(p) not in own]
    groups: list[dict[str, object]] = [{"params": rest, "lr": lr, "weight_decay": 1e-2}]
    if prototypes:
        groups.append({"params": prototypes, "lr": lr / epsilon, "weight_decay": 0.0})
    return torch.optim.AdamW(groups)


def fit_classifier(method: str, train: TokenFeatures, test: TokenFeatures, options: FitOptions, seed: int) -> Fit:
    """Train a pooling and its head on `train`, predict `test`. The order of batches depends on the seed only."""
    start = time.perf_counter()
    torch.manual_seed(seed)
    network = build_classifier(method, train.dim, options)
    if isinstance(network.pooling, KMeansPool):
        network.pooling.fit(train, seed)
    optimizer = optimizer_of(network, options.lr, options.epsilon)
    steps = options.epochs * -(-len(train) // options.batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [g["lr"] for g in optimizer.param_groups], total_steps=steps + 1)
    if isinstance(network.pooling, DDCLReadout):
        network.pooling.prepare(steps)
    history: dict[str, list[float]] = {}
    generator = torch.Generator().manual_seed(seed)
    network.train()
    for _ in range(options.epochs):
        for batch in train.batches(options.batch_size, generator):
            loss = nn.functional.cross_entropy(network(batch.tokens, batch.mask), batch.labels) + network.loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if isinstance(network.pooling, DDCLReadout):
                network.pooling.after_step()
                for name in ("L_q", "L_OLS", "V", "entropy"):
                    history.setdefault(name, []).append(float(network.parts[name]))
    predictions = predict_labels(network, test)
    trained = sum(p.numel() for p in network.parameters())
    return Fit(predictions, time.perf_counter() - start, trained, network, history)


@torch.no_grad()
def predict_labels(network: TokenClassifier, features: TokenFeatures) -> Labels:
    """Most probable class of each sequence, (n,)."""
    network.eval()
    out = np.empty(len(features), dtype=np.int64)
    for batch in features.batches(256):
        out[batch.which.numpy()] = network(batch.tokens, batch.mask).argmax(1).numpy()
    return out


def mean_vectors(features: TokenFeatures) -> Tensor:
    """Mean of each sequence's tokens, (m, dim) float32."""
    which = torch.arange(len(features)).repeat_interleave(features.lengths)
    sums = torch.zeros(len(features), features.dim).index_add_(0, which, features.states.float())
    return sums / features.lengths[:, None]


def linear_reference(train: TokenFeatures, test: TokenFeatures) -> Labels:
    """Logistic regression by scikit-learn on mean-pooled vectors, standardised: predictions on `test`, (n,)."""
    with needs_extra():
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.05, max_iter=300))
    model.fit(mean_vectors(train).numpy(), train.labels.numpy())
    return as_labels(model.predict(mean_vectors(test).numpy()))

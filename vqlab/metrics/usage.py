"""How much of a codebook is used: by the codes that are chosen, and by the soft assignment.

Both metrics add up sums and are exact over a whole pass: no mean of batch values, and one reduction over ranks.
Sums are int64 or float64, so mixed precision around them changes nothing.
"""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from vqlab.indices import check_indices


def count_indices(indices: Tensor, codebook_size: int) -> Tensor:
    """Number of times each code occurs: integer indices of any shape -> (codebook_size,) int64.

    Raises ValueError for a tensor that is not of an integer type and for an index outside 0..codebook_size-1.
    """
    check_indices(indices, codebook_size)
    return torch.bincount(indices.detach().reshape(-1), minlength=codebook_size)


def utilization_from_counts(counts: Tensor) -> Tensor:
    """Share of codes that occur at least once: counts (K,) -> 0-dim float64 in [0, 1]."""
    return (counts > 0).sum().double() / counts.numel()


def perplexity_from_probabilities(weights: Tensor) -> Tensor:
    """exp of the entropy of non-negative weights (K,), scaled to sum 1: 0-dim float64 in [1, K].

    NaN where the weights sum to 0, since nothing has been seen.
    """
    weights = weights.detach().double()
    return torch.special.entr(weights / weights.sum()).sum().exp()  # entr(0) = 0


def perplexity_from_counts(counts: Tensor) -> Tensor:
    """exp of the entropy of the code frequencies: counts (K,) -> 0-dim float64 in [1, K], NaN without tokens."""
    return perplexity_from_probabilities(counts)


class CodebookUsage(Metric):
    """Use of a codebook by the chosen codes: `utilization`, `perplexity` and `counts` of all tokens since reset."""

    full_state_update = False
    higher_is_better = True
    counts: Tensor

    def __init__(self, codebook_size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if codebook_size < 1:
            raise ValueError(f"codebook_size must be at least 1, got {codebook_size}")
        self.codebook_size = codebook_size
        self.add_state("counts", torch.zeros(codebook_size, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, indices: Tensor) -> None:
        """Add integer indices of any shape; ValueError for an index outside 0..codebook_size-1."""
        self.counts += count_indices(indices, self.codebook_size).to(self.counts.device)

    def compute(self) -> dict[str, Tensor]:
        """`utilization` in [0, 1] and `perplexity` in [1, K] (0-dim float64), `counts` (K,) int64.

        Without any token the utilization is 0 and the perplexity NaN.
        """
        return {
            "utilization": utilization_from_counts(self.counts),
            "perplexity": perplexity_from_counts(self.counts),
            "counts": self.counts.clone(),
        }


class SoftUsage(Metric):
    """Use of a codebook by soft assignments q_n: perplexity of their mean, and their own mean perplexity."""

    full_state_update = False
    higher_is_better = None
    assignment: Tensor
    entropy: Tensor
    tokens: Tensor

    def __init__(self, codebook_size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if codebook_size < 1:
            raise ValueError(f"codebook_size must be at least 1, got {codebook_size}")
        self.codebook_size = codebook_size
        self.add_state("assignment", torch.zeros(codebook_size, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("entropy", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("tokens", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, mean_assignment: Tensor, mean_entropy: Tensor | float, tokens: int) -> None:
        """Add a batch: mean_n q_n (K,), mean_n H(q_n) in nats, and the number of tokens both are means of.

        A batch without tokens adds nothing. ValueError for a wrong shape or a negative number of tokens.
        """
        if mean_assignment.shape != (self.codebook_size,):
            raise ValueError(f"mean_assignment must have shape ({self.codebook_size},), got {tuple(mean_assignment.shape)}")
        if tokens < 0:
            raise ValueError(f"the number of tokens cannot be negative, got {tokens}")
        if tokens == 0:
            return  # the mean of nothing is NaN and must not enter the sums
        self.assignment += mean_assignment.detach().to(self.assignment) * tokens
        self.entropy += torch.as_tensor(mean_entropy).detach().to(self.entropy) * tokens
        self.tokens += tokens

    def compute(self) -> dict[str, Tensor]:
        """`soft_perplexity` = exp(H(mean_n q_n)), `assignment_perplexity` = exp(mean_n H(q_n)): 0-dim float64.

        Both lie in [1, K]; the second is 1 for hard assignments. NaN without any token.
        """
        return {
            "soft_perplexity": perplexity_from_probabilities(self.assignment),
            "assignment_perplexity": (self.entropy / self.tokens).exp(),
        }

"""Hard vector quantization with a straight-through estimator: the VQ-VAE baseline.

Sources: van den Oord et al., "Neural Discrete Representation Learning" (arXiv:1711.00937): eq. 3 for the losses, appendix A.1 for the
moving averages. Razavi et al., "VQ-VAE-2" (arXiv:1906.00446). Revival of dead codes: Dhariwal et al., "Jukebox" (arXiv:2005.00341).

    e = codes[argmin_k ||z - codes_k||^2]        quantized = z + sg(e - z)
    commitment = mean (z - sg(e))^2              codebook = mean (sg(z) - e)^2        (mean over tokens and dimensions)
    loss = commitment_weight commitment + codebook                    (update = "gradient")
    loss = commitment_weight commitment, codes by moving averages     (update = "ema")
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vqlab.distributed import broadcast_from, own_rank, rank_with_most, sum_over_ranks
from vqlab.fused import nearest
from vqlab.quantizers.base import Codebook, LevelOutput
from vqlab.quantizers.initialize import INITIALIZATIONS, initial_codes, sample_tokens

UPDATES = ("ema", "gradient")


class VQCodebook(Codebook):
    """One level of hard nearest-code quantization. Codes move in `after_step()`, by all tokens since the last call, over all processes.

    Args:
        update: "ema" (moving averages), or "gradient" as in the original paper.
        commitment_weight: weight of the encoder's term.
        ema_decay: share of the old averages that one step keeps.
        init: "kmeans" or "data" (first training batch), or "random".
        revival_threshold: a code whose moving count falls below this share of the mean count is replaced by a token of the batch; 0: never.
        revival_interval: optimizer steps between such checks, which give a revived code time to prove itself.
    """

    kind = "vqvae"
    part_names = ("distortion", "commitment", "revived")
    cluster_size: Tensor
    cluster_sum: Tensor
    pending_count: Tensor
    pending_sum: Tensor
    initialised: Tensor
    step: Tensor
    revived: Tensor

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        *,
        update: str = "ema",
        commitment_weight: float = 0.25,
        ema_decay: float = 0.99,
        init: str = "kmeans",
        revival_threshold: float = 0.03,
        revival_interval: int = 20,
    ) -> None:
        super().__init__(dim, codebook_size)
        if update not in UPDATES:
            raise ValueError(f"update must be one of {', '.join(UPDATES)}, got {update!r}")
        if init not in INITIALIZATIONS:
            raise ValueError(f"init must be one of {', '.join(INITIALIZATIONS)}, got {init!r}")
        if not 0 <= ema_decay < 1:
            raise ValueError(f"ema_decay must lie in [0, 1), got {ema_decay}")
        if not 0 <= commitment_weight < float("inf"):
            raise ValueError(f"commitment_weight must be finite and not negative, got {commitment_weight}")
        if not 0 <= revival_threshold < 1:
            raise ValueError(f"revival_threshold is a share of the mean count and must lie in [0, 1), got {revival_threshold}")
        if revival_interval < 1:
            raise ValueError(f"revival_interval must be at least 1, got {revival_interval}")
        self.update, self.commitment_weight, self.ema_decay = update, commitment_weight, ema_decay
        self.init, self.revival_threshold, self.revival_interval = init, revival_threshold, revival_interval
        # Random codes start close to the origin, as in the original implementation.
        start = torch.empty(codebook_size, dim).uniform_(-1.0 / codebook_size, 1.0 / codebook_size)
        self.codebook = nn.Parameter(start, requires_grad=update == "gradient")
        self.register_buffer("cluster_size", torch.ones(codebook_size))
        self.register_buffer("cluster_sum", start.clone())
        self.register_buffer("pending_count", torch.zeros(codebook_size))
        self.register_buffer("pending_sum", torch.zeros(codebook_size, dim))
        self.register_buffer("initialised", torch.tensor(init == "random"))
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.register_buffer("revived", torch.zeros((), dtype=torch.int64))
        self._tokens: Tensor | None = None

    @property
    def codes(self) -> Tensor:
        return self.codebook

    @property
    def tracks_counts(self) -> bool:
        """Whether moving counts are kept: for the moving averages and for revival."""
        return not self.frozen and (self.update == "ema" or self.revival_threshold > 0)

    @torch.no_grad()
    def _initialise(self, z: Tensor) -> None:
        self.codebook.copy_(initial_codes(z, self.codebook_size, self.init))
        # Each code starts with the mean count of one batch (of all processes), so that the first averages blend the start with the data.
        tokens = sum_over_ranks(z.new_tensor(float(z.shape[0])))
        self.cluster_size.copy_((tokens / self.codebook_size).expand(self.codebook_size))
        self.cluster_sum.copy_(self.codebook * self.cluster_size[:, None])
        self.initialised.fill_(True)

    def forward(self, z: Tensor) -> LevelOutput:
        """Straight-through codes: (n, dim) float32 -> LevelOutput with parts distortion (mean squared
        distance), commitment (distortion per dimension) and revived (codes replaced so far)."""
        if self.training and not self.frozen and not bool(self.initialised) and rank_with_most(z.shape[0], z.device) is not None:
            self._initialise(z.detach())
        indices = nearest(z, self.codebook)
        e = nn.functional.embedding(indices, self.codebook)
        commitment = (z - e.detach()).square().mean()
        loss = self.commitment_weight * commitment
        if self.update == "gradient" and not self.frozen:
            loss = loss + (z.detach() - e).square().mean()
        if self.training and self.tracks_counts:
            self._collect(z.detach(), indices)
        return LevelOutput(
            quantized=self.pass_gradient(z, e),
            indices=indices,
            loss=loss,
            parts={"distortion": commitment.detach() * self.dim, "commitment": commitment.detach(), "revived": self.revived.float()},
        )

    def pass_gradient(self, z: Tensor, code: Tensor) -> Tensor:
        """The codes, with a gradient for the tokens: (n, dim), (n, dim) -> (n, dim); here straight through."""
        return z + (code - z).detach()

    @torch.no_grad()
    def _collect(self, z: Tensor, indices: Tensor) -> None:
        self.pending_count.add_(torch.bincount(indices, minlength=self.codebook_size))
        self.pending_sum.index_add_(0, indices, z)
        if self.revival_threshold:
            self._tokens = z

    @torch.no_grad()
    def after_step(self) -> None:
        """Move the codes by the tokens since the last call (all processes together) and revive dead ones."""
        self.step.add_(1)
        if not self.tracks_counts:
            return
        pending = sum_over_ranks(torch.cat([self.pending_count[:, None], self.pending_sum], 1))
        self.cluster_size.lerp_(pending[:, 0], 1 - self.ema_decay)
        if self.update == "ema":
            self.cluster_sum.lerp_(pending[:, 1:], 1 - self.ema_decay)
            # A code that no token has chosen for very long keeps its place instead of becoming 0/0.
            size = self.cluster_size[:, None]
            self.codebook.copy_(torch.where(size > 1e-6, self.cluster_sum / size.clamp_min(1e-6), self.codebook))
        if self.revival_threshold and int(self.step) % self.revival_interval == 0:
            self._revive()
        self.pending_count.zero_()
        self.pending_sum.zero_()
        self._tokens = None

    def _revive(self) -> None:
        mean = self.cluster_size.mean()
        dead = (self.cluster_size < self.revival_threshold * mean).nonzero().flatten()
        candidates = self._candidates(dead.numel())
        if candidates is None:
            return
        self.codebook[dead] = candidates
        # A newborn starts with the mean count: it is not dead again at the next check unless nothing chooses it for long.
        self.cluster_size[dead] = mean
        self.cluster_sum[dead] = candidates * mean
        self.revived.add_(dead.numel())

    def _candidates(self, count: int) -> Tensor | None:
        """`count` tokens of this step, equal on all ranks; None when no rank has any."""
        tokens = self._tokens if self._tokens is not None else self.codebook.new_zeros(0, self.dim)
        # Drawn from the step, not from the global generator: a run resumed from the state dict revives with the same tokens.
        draw = torch.Generator().manual_seed(int(self.step))
        source = rank_with_most(tokens.shape[0], tokens.device)
        if count == 0 or source is None:
            return None
        picked = sample_tokens(tokens, count, draw) if source == own_rank() else tokens.new_empty(count, self.dim)
        return broadcast_from(source, picked)

    def encode(self, z: Tensor) -> Tensor:
        return nearest(z, self.codebook)

    def freeze(self, frozen: bool = True) -> None:
        super().freeze(frozen)
        self.codebook.requires_grad_(self.update == "gradient" and not frozen)

    def codebook_parameters(self) -> list[nn.Parameter]:
        return [self.codebook] if self.update == "gradient" else []

    def settings(self) -> dict[str, Any]:
        return {
            "update": self.update,
            "commitment_weight": self.commitment_weight,
            "ema_decay": self.ema_decay,
            "init": self.init,
            "revival_threshold": self.revival_threshold,
            "revival_interval": self.revival_interval,
        }

"""DDCL: soft competitive prototypes, trained by L_q = L_OLS + V, no straight-through estimator.

Source: "Collapse-Free Prototype Readout Layer for Transformer Encoders" (DDCL-Attention, arXiv:2604.03850).

    tokens z ---> q = softmax(-||z - p||^2 / T) ---> mu = sum_k q_k p_k ---> what the decoder sees while training
                     |
                     +---> argmax q = nearest prototype ---> ids

The collapse of all prototypes into one point repels iff T < T_c = 4 lambda_max(Cov z) (`vqlab.assignment.critical_temperature`). The
temperature is therefore relative to the tokens' total variance, T = tau tr(Cov z), and the margin T_c / T is reported.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vqlab import assignment
from vqlab.distributed import rank_with_most, sum_over_ranks
from vqlab.fused import nearest, soft_assign
from vqlab.quantizers.base import Codebook, LevelOutput
from vqlab.quantizers.initialize import INITIALIZATIONS, initial_codes
from vqlab.quantizers.temperature import TemperatureSchedule

#: Prototypes whose distances to all others are taken at logged steps, and at the end of an epoch.
QUICK_ROWS, THOROUGH_ROWS = 1024, 16384


class DDCLCodebook(Codebook):
    """One level of soft competitive prototypes.

    Args:
        tau_start: relative temperature T / tr(Cov z) at the start.
        tau_end: relative temperature at the end.
        tau_shape: how it cools: geometric, linear, cosine or constant.
        tau_fraction: share of the training over which it cools.
        loss_weight: weight of L_q per dimension in the loss.
        usage_weight: weight of log K - H(mean_n q_n), the push toward equal use.
        usage_end: share of usage_weight that is left when tau has cooled.
        entropy_weight: weight of mean_n H(q_n) times the tokens' variance per dimension, the push toward one code per token, growing from 0
            as tau cools; pure DDCL has both at 0.
        init: "kmeans" or "data" (first training batch), or "random".
        covariance_momentum: share of the new batch in the running Cov z.
        keep_margin: strict mode: the least collapse margin T_c / T, kept by lowering T where tau asks for more; 0: never.
    """

    kind = "ddcl"
    is_soft = True
    part_names = ("L_q", "L_OLS", "V", "entropy", "free_energy", "usage_penalty", "tau", "temperature")
    covariance: Tensor
    initialised: Tensor

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        *,
        tau_start: float = 0.1,
        tau_end: float = 0.002,
        tau_shape: str = "geometric",
        tau_fraction: float = 0.6,
        loss_weight: float = 0.05,
        usage_weight: float = 0.03,
        usage_end: float = 0.2,
        entropy_weight: float = 0.03,
        init: str = "kmeans",
        covariance_momentum: float = 0.05,
        keep_margin: float = 0.0,
    ) -> None:
        super().__init__(dim, codebook_size)
        if init not in INITIALIZATIONS:
            raise ValueError(f"init must be one of {', '.join(INITIALIZATIONS)}, got {init!r}")
        for name, weight in (("loss_weight", loss_weight), ("usage_weight", usage_weight), ("entropy_weight", entropy_weight)):
            if not 0 <= weight < float("inf"):
                raise ValueError(f"{name} must be finite and not negative, got {weight}")
        if not 0 <= usage_end <= 1:
            raise ValueError(f"usage_end is a share of usage_weight and must lie in [0, 1], got {usage_end}")
        if not 0 < covariance_momentum <= 1:
            raise ValueError(f"covariance_momentum must lie in (0, 1], got {covariance_momentum}")
        if keep_margin != 0 and not 1 <= keep_margin < float("inf"):
            raise ValueError(f"keep_margin must be 0 (off) or a margin of at least 1, got {keep_margin}")
        self.keep_margin = keep_margin
        self.loss_weight, self.usage_weight, self.entropy_weight = loss_weight, usage_weight, entropy_weight
        self.usage_end = usage_end
        self.init, self.covariance_momentum = init, covariance_momentum
        self.schedule = TemperatureSchedule(tau_start, tau_end, tau_shape, tau_fraction)
        self.prototypes = nn.Parameter(torch.randn(codebook_size, dim))
        self.register_buffer("covariance", torch.eye(dim))
        self.register_buffer("initialised", torch.zeros(2, dtype=torch.bool))  # [prototypes, covariance]
        self.initialised[0] = init == "random"

    @property
    def codes(self) -> Tensor:
        return self.prototypes

    @property
    def temperature(self) -> Tensor:
        """T = tau tr(Cov z), 0-dim float32; a floor keeps it positive where the tokens have no variance (an exhausted residual)."""
        return self._limited(self.schedule.tau * self.covariance.trace().clamp_min(1e-6 * self.dim), self.covariance)

    def _limited(self, temperature: Tensor, covariance: Tensor) -> Tensor:
        """In strict mode at most T_c / keep_margin for tokens of this covariance."""
        if not self.keep_margin:
            return temperature
        return torch.minimum(temperature, assignment.critical_temperature(covariance).clamp_min(1e-6) / self.keep_margin)

    @property
    def margin(self) -> Tensor:
        """Collapse margin T_c / T: above 1 the collapse of all prototypes repels."""
        return assignment.critical_temperature(self.covariance) / self.temperature

    @torch.no_grad()
    def _observe(self, z: Tensor) -> Tensor:
        """Initialise from the first training batch and keep the running covariance; returns that of the batch (of all processes)."""
        if not self.initialised[0] and self.prototypes.requires_grad and rank_with_most(z.shape[0], z.device) is not None:
            self.prototypes.copy_(initial_codes(z, self.codebook_size, self.init))
            self.initialised[0] = True
        sums = sum_over_ranks(torch.cat([z.sum(0), z.new_tensor([z.shape[0]])]))
        n = sums[-1]
        if n == 0:
            return self.covariance
        # Mean first: the difference of raw moments would lose all digits of tokens far from 0.
        centred = z - sums[:-1] / n
        batch = sum_over_ranks(centred.T @ centred / n)
        momentum = self.covariance_momentum if self.initialised[1] else 1.0
        self.covariance.lerp_(batch, momentum)
        self.initialised[1] = True
        return batch

    def forward(self, z: Tensor) -> LevelOutput:
        """Soft centroids and the competitive loss: (n, dim) float32 -> LevelOutput with parts
        L_q, L_OLS, V, entropy, free_energy, usage_penalty, tau, temperature (V in squared token units, entropy in nats)."""
        if self.training:
            batch = self._observe(z.detach())
            # Running statistics lag behind an encoder that shrinks its tokens: strict means for these tokens, too.
            temperature = self._limited(self.temperature, batch)
        else:
            temperature = self.temperature
        soft = soft_assign(z, self.prototypes, temperature)
        unused = assignment.usage_penalty(soft.mean_assignment)
        loss = self.loss_weight * soft.l_q / self.dim
        entropy, tau, cooled = soft.entropy.mean(), self.schedule.tau, self.schedule.progress
        if self.usage_weight:
            # Equal use brings every code into play; once all are, the codes that decode best are not used quite equally.
            loss = loss + self.usage_weight * (1.0 - (1.0 - self.usage_end) * cooled) * unused
        if self.entropy_weight:
            # Without it the encoder answers cooling by crowding its tokens, so that mixtures of prototypes keep carrying what ids cannot.
            # At full strength from the start, prototypes that win late would starve. Like L_q / dim it scales with the tokens' variance:
            # later levels, which have little left to say, must not outweigh the reconstruction.
            spread = self.covariance.trace() / self.dim
            loss = loss + self.entropy_weight * cooled * spread * entropy
        free_energy = assignment.free_energy(soft.log_partition, temperature)
        values = (soft.l_q, soft.l_ols, soft.v, entropy, free_energy, unused, tau, temperature)
        return LevelOutput(
            quantized=soft.centroid,
            indices=soft.indices,
            loss=loss,
            parts={name: value.detach() for name, value in zip(self.part_names, values, strict=True)},
            mean_assignment=soft.mean_assignment.detach(),
        )

    @torch.no_grad()
    def diagnostics(self, thorough: bool = False) -> dict[str, Tensor]:
        """Figures too costly for every step: `margin` T_c/T, and `separation`, `separation_nearest` of the prototypes
        relative to the tokens' scale sqrt(tr Cov z); in a large codebook those of evenly spaced prototypes to all others."""
        scale = self.covariance.trace().clamp_min(1e-12).sqrt()
        distances = assignment.separation(self.prototypes, THOROUGH_ROWS if thorough else QUICK_ROWS)
        return {"margin": self.margin, "separation": distances.minimum / scale, "separation_nearest": distances.nearest_mean / scale}

    def encode(self, z: Tensor) -> Tensor:
        return nearest(z, self.prototypes)

    def after_step(self) -> None:
        self.schedule.advance()

    def prepare(self, total_steps: int) -> None:
        self.schedule.prepare(total_steps)

    def freeze(self, frozen: bool = True) -> None:
        super().freeze(frozen)
        self.prototypes.requires_grad_(not frozen)

    def codebook_parameters(self) -> list[nn.Parameter]:
        return [self.prototypes]

    def settings(self) -> dict[str, Any]:
        s = self.schedule
        return {
            "tau_start": s.start,
            "tau_end": s.end,
            "tau_shape": s.shape,
            "tau_fraction": s.fraction,
            "loss_weight": self.loss_weight,
            "usage_weight": self.usage_weight,
            "usage_end": self.usage_end,
            "entropy_weight": self.entropy_weight,
            "init": self.init,
            "covariance_momentum": self.covariance_momentum,
            "keep_margin": self.keep_margin,
        }

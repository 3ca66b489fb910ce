"""Gumbel-softmax quantization: codes are sampled, and the sampling is relaxed so that it has a gradient.

Sources: Jang et al., "Categorical Reparameterization with Gumbel-Softmax" (arXiv:1611.01144), eq. 2; Ramesh et al., "Zero-Shot
Text-to-Image Generation" (DALL-E, arXiv:2102.12092), section 2.1, for the use in an image tokenizer and the cooling of tau from 1 to 1/16.

    l_nk = w_k . z_n + b_k           q_nk = softmax_k(l_nk)           y_nk = softmax_k((l_nk + g_nk) / tau),  g from Gumbel(0, 1)
    quantized = sum_k y_nk p_k       id = argmax_k l_nk               loss = kl_weight mean_n (log K - H(q_n))

In `eval()` there is no noise: quantized = sum_k softmax_k(l_nk / tau) p_k. Holds the tokens x codes matrix.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from vqlab.quantizers.base import Codebook, LevelOutput
from vqlab.quantizers.temperature import TemperatureSchedule


class GumbelCodebook(Codebook):
    """One level of Gumbel-softmax quantization.

    Args:
        tau_start: temperature of the relaxed samples at the start.
        tau_end: temperature at the end.
        tau_shape: how it cools: geometric, linear, cosine or constant.
        tau_fraction: share of the training over which it cools.
        kl_weight: weight of KL(q || uniform) per token.
    """

    kind = "gumbel"
    is_soft = True
    part_names = ("entropy", "kl", "tau")

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        *,
        tau_start: float = 1.0,
        tau_end: float = 0.0625,
        tau_shape: str = "geometric",
        tau_fraction: float = 0.6,
        kl_weight: float = 5e-4,
    ) -> None:
        super().__init__(dim, codebook_size)
        if not 0 <= kl_weight < math.inf:
            raise ValueError(f"kl_weight must be finite and not negative, got {kl_weight}")
        self.kl_weight = kl_weight
        self.schedule = TemperatureSchedule(tau_start, tau_end, tau_shape, tau_fraction)
        self.logits = nn.Linear(dim, codebook_size)
        self.embedding = nn.Parameter(torch.randn(codebook_size, dim))

    @property
    def codes(self) -> Tensor:
        return self.embedding

    def forward(self, z: Tensor) -> LevelOutput:
        """Relaxed samples: (n, dim) float32 -> LevelOutput with parts entropy mean_n H(q_n), kl (nats) and tau."""
        logits, tau = self.logits(z), self.schedule.tau
        log_q = torch.log_softmax(logits, -1)
        q = log_q.exp()
        noise = -torch.empty_like(logits).exponential_().clamp_min(torch.finfo(logits.dtype).tiny).log() if self.training else 0.0
        y = torch.softmax((logits + noise) / tau, -1)
        entropy = -(q * log_q).sum(-1).mean()
        kl = math.log(self.codebook_size) - entropy
        return LevelOutput(
            quantized=y @ self.embedding,
            indices=logits.argmax(-1),
            loss=self.kl_weight * kl,
            parts={"entropy": entropy.detach(), "kl": kl.detach(), "tau": tau},
            mean_assignment=q.mean(0).detach() if z.shape[0] else q.new_zeros(self.codebook_size),
        )

    def encode(self, z: Tensor) -> Tensor:
        return self.logits(z).argmax(-1)

    def after_step(self) -> None:
        self.schedule.advance()

    def prepare(self, total_steps: int) -> None:
        self.schedule.prepare(total_steps)

    def freeze(self, frozen: bool = True) -> None:
        super().freeze(frozen)
        for parameter in self.codebook_parameters():
            parameter.requires_grad_(not frozen)

    def codebook_parameters(self) -> list[nn.Parameter]:
        return [self.embedding, *self.logits.parameters()]

    def settings(self) -> dict[str, Any]:
        s = self.schedule
        return {
            "tau_start": s.start,
            "tau_end": s.end,
            "tau_shape": s.shape,
            "tau_fraction": s.fraction,
            "kl_weight": self.kl_weight,
        }

"""DDCL as a readout: what stands between a transformer encoder and a head, in the place of [CLS] or mean pooling.

    tokens (b, n, dim), mask (b, n)
        |  padding dropped                    nothing below ever sees it
        v
    z (N, codebook_dim) --> q_nk = softmax_k(-||z_n - p_k||^2 / T) --> mu_n = sum_k q_nk p_k --> soft-centroid tokens (b, n, dim)
                              |                                          '--> mean per sequence --> pooled (b, dim)
                              '--> mean per sequence --> histogram (b, K)
                              '--> weighted means of tokens --> summaries (b, K, dim)

Cost O(N K) in time; the assignment matrix (N, K) is held, since histogram and interpretation need it.
Source: "Collapse-Free Prototype Readout Layer for Transformer Encoders" (DDCL-Attention, arXiv:2604.03850).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from vqlab.assignment import log_assignments
from vqlab.precision import without_autocast
from vqlab.quantizers.base import check_tokens
from vqlab.quantizers.ddcl import DDCLCodebook
from vqlab.quantizers.latents import LatentSpace
from vqlab.readout.packing import packing_of


@dataclass(frozen=True)
class ReadoutOutput:
    """What a readout returns for b sequences of n tokens and K prototypes.

    tokens: soft centroids (b, n, dim), 0 at padding.  pooled: their mean over each sequence's real tokens (b, dim).
    histogram: share of each prototype in a sequence (b, K), rows sum to 1.  summaries: per prototype the mean of the sequence's tokens
    weighted by q (b, K, dim).  indices: nearest prototype (b, n) int64, -1 at padding.  assignment: q (b, n, K), 0 at padding.
    loss: scalar to add to the task's.  parts: named scalars of the layer, detached: L_q, L_OLS, V, entropy H(q), free_energy, ...
    """

    tokens: Tensor
    pooled: Tensor
    histogram: Tensor
    summaries: Tensor
    indices: Tensor
    assignment: Tensor
    loss: Tensor
    parts: dict[str, Tensor]


class DDCLReadout(nn.Module):
    """Soft competitive prototypes as a pooling layer on tokens (b, n, dim), with or without a padding mask (b, n).

        readout = DDCLReadout(dim=384, codebook_size=16)
        out = readout(encoder(**batch).last_hidden_state, batch["attention_mask"])
        loss = cross_entropy(head(out.pooled), labels) + out.loss

    dim: width of the tokens.  codebook_size: number of prototypes K.  codebook_dim: width of the space they live in, None for `dim`.
    normalize: fix the scale of that space (`LatentNorm`), without which a trained encoder may shrink its tokens until they merge.
    settings: those of `DDCLCodebook` (tau_start, tau_end, loss_weight, ...); defaults that suit a readout are in READOUT_SETTINGS.

    Call `prepare(total_steps)` before and `after_step()` after every optimizer step for the temperature to cool; give
    `codebook_parameters()` a larger learning rate than the rest and no weight decay. While training, normalisation and running
    statistics take all real tokens of the batch; in `eval()` a sequence's output depends on nothing but its own tokens.
    """

    def __init__(self, dim: int, codebook_size: int, *, codebook_dim: int | None = None, normalize: bool = True, **settings: Any) -> None:
        super().__init__()
        self.dim, self.codebook_size = dim, codebook_size
        self.space = LatentSpace(dim, dim if codebook_dim is None else codebook_dim, normalize)
        self.codebook = DDCLCodebook(dim if codebook_dim is None else codebook_dim, codebook_size, **{**READOUT_SETTINGS, **settings})

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> ReadoutOutput:
        """(b, n, dim), mask (b, n) with 1 or True at real tokens -> ReadoutOutput, in float32 also under autocast.

        Raises ValueError for other shapes or an empty sequence, NonFiniteError for NaN or inf in a real token while training.
        """
        if tokens.dim() == 3 and tokens.shape[2] != self.dim:
            raise ValueError(f"expected tokens of width {self.dim}, got shape {tuple(tokens.shape)}")
        packing = packing_of(tokens, mask)
        with without_autocast(tokens.device):
            x = packing.pack(tokens).float()
            if self.training:
                check_tokens("tokens of the readout", x.detach())
            z = self.space.enter(x)
            level = self.codebook(z)
            log_q = log_assignments(z, self.codebook.prototypes, self.codebook.temperature)
            q = log_q.exp()
            centroids = self.space.leave(level.quantized)
            return ReadoutOutput(
                tokens=packing.unpack(centroids),
                pooled=packing.mean(centroids),
                histogram=packing.mean(q),
                summaries=weighted_means(packing.unpack(log_q, fill=float("-inf")), packing.unpack(x)),
                indices=packing.unpack(level.indices, fill=-1),
                assignment=packing.unpack(q),
                loss=level.loss,
                parts=level.parts,
            )

    def diagnostics(self) -> dict[str, Tensor]:
        """`margin` T_c / T (above 1 the merging of all prototypes repels), `separation` S(P) and `separation_nearest`, relative to the
        tokens' scale."""
        return self.codebook.diagnostics()

    def prepare(self, total_steps: int) -> None:
        """Length of the training in optimizer steps, for the temperature's schedule."""
        self.codebook.prepare(total_steps)

    def after_step(self) -> None:
        """Call once after every optimizer step: the temperature cools."""
        self.codebook.after_step()

    def codebook_parameters(self) -> list[nn.Parameter]:
        """The prototypes: own learning rate, no weight decay."""
        return self.codebook.codebook_parameters()

    def parameter_groups(self, lr: float, ratio: float = 0.1, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """Groups for an optimizer: prototypes at lr / ratio, all else at lr. ratio: epsilon, the encoder's rate over the prototypes',
        at most 0.1 for the two time scales of the method (Tikhonov)."""
        own = {id(p) for p in self.codebook_parameters()}
        rest = [p for p in self.parameters() if id(p) not in own]
        return [
            {"params": rest, "lr": lr, "weight_decay": weight_decay},
            {"params": self.codebook_parameters(), "lr": lr / ratio, "weight_decay": 0.0},
        ]


#: Defaults of a readout: pure DDCL (no push toward equal use or hard assignment), a temperature that stays soft for the head's gradients.
READOUT_SETTINGS: dict[str, Any] = {
    "tau_start": 0.1,
    "tau_end": 0.03,
    "loss_weight": 0.1,
    "usage_weight": 0.0,
    "entropy_weight": 0.0,
}


def weighted_means(log_q: Tensor, x: Tensor) -> Tensor:
    """s_k = sum_n q_nk x_n / sum_n q_nk: log q (b, n, K), -inf at padding, and tokens (b, n, d) -> (b, K, d).

    The normalisation over tokens of Slot Attention (Locatello et al., arXiv:2006.15055, algorithm 1), in logarithms: a prototype that no
    token of a sequence is near still has weights that sum to 1.
    """
    return log_q.softmax(1).transpose(1, 2) @ x


class ReadoutStack(nn.Module):
    """Readouts one after the other with fewer and fewer prototypes: hierarchical compression.

        carry="tokens":     tokens --[K1]--> soft centroids (b, n, dim) --[K2]--> soft centroids (b, n, dim) ...
        carry="summaries":  tokens --[K1]--> K1 summaries per sequence  --[K2]--> K2 summaries per sequence ...

    With "tokens" the number of tokens stays and each costs log2 K bits; with "summaries" the number of vectors per sequence falls.
    codebook_sizes: prototypes of each level, not growing. Other arguments as in `DDCLReadout`, the same for all levels.
    """

    def __init__(self, dim: int, codebook_sizes: Sequence[int], *, carry: str = "tokens", **options: Any) -> None:
        super().__init__()
        if carry not in ("tokens", "summaries"):
            raise ValueError(f"carry must be 'tokens' or 'summaries', got {carry!r}")
        if not codebook_sizes or list(codebook_sizes) != sorted(codebook_sizes, reverse=True):
            raise ValueError(f"a stack compresses: codebook_sizes must not grow and not be empty, got {list(codebook_sizes)}")
        self.carry = carry
        self.levels = nn.ModuleList(DDCLReadout(dim, size, **options) for size in codebook_sizes)

    @property
    def readouts(self) -> list[DDCLReadout]:
        return [level for level in self.levels if isinstance(level, DDCLReadout)]

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> list[ReadoutOutput]:
        """(b, n, dim), mask (b, n) -> the output of every level, first to last; the loss of the stack is the sum of theirs."""
        outputs: list[ReadoutOutput] = []
        for readout in self.readouts:
            out = readout(tokens, mask)
            outputs.append(out)
            tokens, mask = (out.tokens, mask) if self.carry == "tokens" else (out.summaries, None)
        return outputs

    def prepare(self, total_steps: int) -> None:
        """Length of the training in optimizer steps."""
        for readout in self.readouts:
            readout.prepare(total_steps)

    def after_step(self) -> None:
        """Call once after every optimizer step."""
        for readout in self.readouts:
            readout.after_step()

    def codebook_parameters(self) -> list[nn.Parameter]:
        """The prototypes of all levels."""
        return [p for readout in self.readouts for p in readout.codebook_parameters()]

    def parameter_groups(self, lr: float, ratio: float = 0.1, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """Groups for an optimizer, as in `DDCLReadout.parameter_groups`."""
        return [group for readout in self.readouts for group in readout.parameter_groups(lr, ratio, weight_decay)]

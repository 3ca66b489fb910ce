"""One pass over a data split: every figure of a tokenizer's quality, soft and hard, per level."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from vqlab.errors import VqlabError
from vqlab.losses import FeatureDistance
from vqlab.metrics import CodebookUsage, ReconstructionMetrics, SoftUsage, WeightedMeans
from vqlab.quantizers import Codebook, Quantizer, QuantizerOutput
from vqlab.tokenizer import Tokenizer


def check_sides(size: tuple[int, int], tokenizer: Tokenizer) -> None:
    """VqlabError unless images of this size (h, w) divide into the tokenizer's tokens: figures are measured without padding."""
    try:
        padded = tokenizer.padded_size(*size)
    except ValueError as error:
        raise VqlabError(str(error)) from error
    if padded != size:
        raise VqlabError(
            f"images of {size[0]}x{size[1]} pixels do not divide into tokens of {tokenizer.factor}x{tokenizer.factor}: choose another "
            "image_size, or an encoder with fewer pixels per token (conv.downsamplings)"
        )


class LevelMetrics(nn.Module):
    """Codebook use and loss parts of one level over a pass, weighted by tokens, summed over processes."""

    def __init__(self, book: Codebook) -> None:
        super().__init__()
        self.usage = CodebookUsage(book.codebook_size)
        self.is_soft = book.is_soft
        # The assignment that the entropies of a hard quantizer's loss look at counts too, without figures of its own.
        self.soft_usage = SoftUsage(book.codebook_size) if book.is_soft or "mean_entropy" in book.part_names else None
        self.parts = WeightedMeans(book.part_names)

    def update(self, out: QuantizerOutput, level: int, ids: Tensor) -> None:
        """Add one batch's mean assignment, loss parts and ids, each token once, of `level` (0-based)."""
        tokens, parts, mean_assignment = ids.numel(), out.parts[level], out.mean_assignment[level]
        self.usage.update(ids)
        if self.soft_usage is not None and mean_assignment is not None:
            self.soft_usage.update(mean_assignment, parts["entropy" if self.is_soft else "token_entropy"], tokens)
        self.parts.update(parts, tokens)

    def compute(self) -> dict[str, float]:
        """Named figures: utilization, perplexity, soft_perplexity, assignment_perplexity and the means of all parts."""
        usage = self.usage.compute()
        figures = {"utilization": float(usage["utilization"]), "perplexity": float(usage["perplexity"])}
        parts = {name: float(value) for name, value in self.parts.compute().items()}
        if self.soft_usage is not None:
            soft = {name: float(value) for name, value in self.soft_usage.compute().items()}
            if self.is_soft:
                figures |= soft
            # H(mean_n q_n) of the whole pass: a mean of batch values would depend on the batch size.
            if "usage_penalty" in parts:
                parts["usage_penalty"] = math.log(self.usage.codebook_size) - math.log(soft["soft_perplexity"])
            if "mean_entropy" in parts:
                parts["mean_entropy"] = math.log(soft["soft_perplexity"])
        return figures | parts

    def metrics(self) -> Iterator[Metric]:
        yield from (self.usage, self.parts)
        if self.soft_usage is not None:
            yield self.soft_usage

    def reset(self) -> None:
        for metric in self.metrics():
            metric.reset()


class LevelMetricsList(nn.ModuleList):
    """One `LevelMetrics` for each level of the tokenizer's quantizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(LevelMetrics(book) for book in tokenizer.quantizer.codebooks)

    def __iter__(self) -> Iterator[LevelMetrics]:
        return (level for level in self._modules.values() if isinstance(level, LevelMetrics))

    def update(self, quantizer: Quantizer, out: QuantizerOutput) -> None:
        """Add one batch to every level."""
        for i, (level, ids) in enumerate(zip(self, quantizer.cell_ids(out.indices), strict=True)):
            level.update(out, i, ids)


class Evaluation(nn.Module):
    """Figures of a tokenizer on a split: call `update` for every batch, then `compute`.

    Keys: hard/{mse,psnr,psnr_pooled,ssim} (ids -> image), soft/... and gap = soft - hard psnr where a soft output exists,
    level{l}/... per level (1-based), prefix{l}/psnr for stacks (image from the ids of the first l levels).
    A tokenizer without quantizer has only hard/..., its plain reconstruction. With a `distance`, hard/feature_distance too.
    """

    def __init__(self, tokenizer: Tokenizer, distance: FeatureDistance | None = None) -> None:
        super().__init__()
        quantizer = tokenizer.quantizer
        self._distance = (distance,)  # in a tuple, so that the network is no part of checkpoints
        self.feature_distance = WeightedMeans(("feature_distance",)) if distance else None
        self.hard = ReconstructionMetrics()
        self.soft = ReconstructionMetrics() if quantizer.is_soft else None
        self.levels = LevelMetricsList(tokenizer)
        prefixes = quantizer.num_levels - 1
        self.prefixes = nn.ModuleList(ReconstructionMetrics() for _ in range(prefixes))

    @torch.no_grad()
    def update(self, tokenizer: Tokenizer, images: Tensor) -> None:
        """Add a batch of images (b, c, h, w), float in [0, 1]; the tokenizer must be in `eval()` mode."""
        if tokenizer.training:
            raise ValueError("evaluate a tokenizer in eval() mode, so that measuring does not change it")
        out = tokenizer.quantizer(tokenizer.encode_features(images))
        if not len(self.levels):
            self._update_hard(tokenizer.decode(out.quantized), images)
            return
        ids = out.indices
        self._update_hard(self._decode(tokenizer, ids), images)
        if self.soft is not None:  # a hard quantizer's output is what its ids decode to
            self.soft.update(tokenizer.decode(out.quantized), images)
        self.levels.update(tokenizer.quantizer, out)
        for i, prefix in enumerate(self.prefixes):
            prefix.update(self._decode(tokenizer, ids[..., : i + 1]), images)  # type: ignore[operator]

    def _update_hard(self, reconstruction: Tensor, images: Tensor) -> None:
        self.hard.update(reconstruction, images)
        (distance,) = self._distance
        if distance is not None and self.feature_distance is not None:
            mean = distance.to(images.device)(reconstruction.clamp(0.0, 1.0), images).mean()
            self.feature_distance.update({"feature_distance": mean}, len(images))

    @staticmethod
    def _decode(tokenizer: Tokenizer, indices: Tensor) -> Tensor:
        return tokenizer.decode(tokenizer.quantizer.decode_indices(indices))

    def compute(self) -> dict[str, float]:
        """All figures as plain floats (see the class)."""
        figures = {f"hard/{name}": float(value) for name, value in self.hard.compute().items()}
        if self.feature_distance is not None:
            figures["hard/feature_distance"] = float(self.feature_distance.compute()["feature_distance"])
        if self.soft is not None:
            figures |= {f"soft/{name}": float(value) for name, value in self.soft.compute().items()}
            figures["gap"] = figures["soft/psnr"] - figures["hard/psnr"]
        for i, level in enumerate(self.levels, 1):
            figures |= {f"level{i}/{name}": value for name, value in level.compute().items()}
        if len(self.prefixes):
            for i, prefix in enumerate([*self.prefixes, self.hard], 1):
                figures[f"prefix{i}/psnr"] = float(prefix.compute()["psnr"])
        return figures

    def counts(self) -> list[Tensor]:
        """Code counts of each level, int64 (K,), over all processes."""
        # torchmetrics makes a scalar of a tensor with one element.
        return [level.usage.compute()["counts"].reshape(level.usage.codebook_size) for level in self.levels]

    def reset(self) -> None:
        """Forget everything: the next `update` starts a new pass."""
        for module in (self.hard, self.soft, self.feature_distance, *self.levels, *self.prefixes):
            if module is not None:
                module.reset()

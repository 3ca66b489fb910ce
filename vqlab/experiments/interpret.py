"""What a prototype stands for: the tokens it takes, in context, and patches of images."""

from __future__ import annotations

import heapq
from collections import Counter

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from vqlab.experiments.encoders import TextEncoder
from vqlab.experiments.features import TokenFeatures
from vqlab.readout import DDCLReadout
from vqlab.results.style import DPI, styled


@torch.no_grad()
def prototype_tokens(
    readout: DDCLReadout, features: TokenFeatures, encoder: TextEncoder, per_prototype: int = 5, context: int = 4
) -> pd.DataFrame:
    """For every prototype, in order of its share of all tokens: the share, its commonest tokens, and the tokens with the largest q in
    their sentences, marked by [ ]. No sentence is quoted twice for one prototype."""
    readout.eval()
    k = readout.codebook_size
    total, mass = 0, torch.zeros(k)
    counts: list[Counter[int]] = [Counter() for _ in range(k)]
    best: list[list[tuple[float, int, int]]] = [[] for _ in range(k)]  # heaps of (q, sequence, position)
    for batch in features.batches(256):
        out = readout(batch.tokens, batch.mask)
        mass += out.assignment.sum((0, 1))
        total += int(batch.mask.sum())
        for row, which in enumerate(batch.which.tolist()):
            ids = features.ids[features.offsets[which] : features.offsets[which + 1]]
            for token, index in zip(ids.tolist(), out.indices[row, : len(ids)].tolist(), strict=True):
                counts[index][token] += 1
            top = out.assignment[row, : len(ids)].max(0)
            for index, (value, position) in enumerate(zip(top.values.tolist(), top.indices.tolist(), strict=True)):
                heapq.heappush(best[index], (value, which, position))
                if len(best[index]) > per_prototype:
                    heapq.heappop(best[index])
    decode = encoder.tokenizer.convert_ids_to_tokens
    rows = []
    for index in mass.argsort(descending=True).tolist():
        quotes = [_quote(features, encoder, which, position, context) for _, which, position in sorted(best[index], reverse=True)]
        rows.append(
            {
                "prototype": index,
                "share": f"{float(mass[index]) / total:.1%}",
                "commonest tokens": ", ".join(decode([token for token, _ in counts[index].most_common(6)])),
                "largest q, in context": " / ".join(quotes),
            }
        )
    return pd.DataFrame(rows)


def _quote(features: TokenFeatures, encoder: TextEncoder, which: int, position: int, context: int) -> str:
    ids = features.ids[features.offsets[which] : features.offsets[which + 1]].tolist()
    words = encoder.tokenizer.convert_ids_to_tokens(ids)
    words[position] = f"[{words[position]}]"
    return " ".join(words[max(0, position - context) : position + context + 1]).replace(" ##", "")


@styled
def tokens_figure(table: pd.DataFrame, rows: int = 16) -> Figure:
    """The prototypes with the largest shares as bars, each with its commonest tokens."""
    shown = table.head(rows)
    figure = Figure(figsize=(7.0, 0.3 * len(shown) + 0.8), dpi=DPI, layout="constrained")
    axis = figure.add_subplot()
    shares = [float(text.rstrip("%")) for text in shown["share"]]
    axis.barh(range(len(shown)), shares, color="#0072B2", height=0.6)
    for row, words in enumerate(shown["commonest tokens"]):
        # Dollar signs would start mathematics.
        axis.text(shares[row] + 0.01 * max(shares), row, " " + words.replace("$", r"\\$"), va="center", fontsize=8)
    axis.set_yticks(range(len(shown)), [f"prototype {p}" for p in shown["prototype"]])
    axis.set_xlim(0, 2.4 * max(shares))
    axis.invert_yaxis()
    axis.set_xlabel("share of all tokens (%)")
    return figure


@styled
def patches_figure(patches: Tensor, q: Tensor, per_prototype: int = 12, rows: int = 16) -> Figure:
    """One row of patches per prototype, the largest q first: patches (n, 3, s, s) in [0, 1], q (n, K)."""
    order = q.sum(0).argsort(descending=True)[:rows]
    figure = Figure(figsize=(0.45 * per_prototype + 1.2, 0.45 * len(order) + 0.2), dpi=DPI, layout="constrained")
    axes = np.atleast_2d(figure.subplots(len(order), per_prototype))
    for line, index in zip(axes, order.tolist(), strict=True):
        for axis, patch in zip(line, q[:, index].topk(per_prototype).indices.tolist(), strict=True):
            axis.imshow(patches[patch].movedim(0, -1).numpy(), interpolation="nearest")
            axis.set_axis_off()
        line[0].text(-0.3, 0.5, f"{float(q[:, index].mean()):.0%}", transform=line[0].transAxes, va="center", ha="right")
    return figure

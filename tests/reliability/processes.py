"""Several gloo processes on one machine: one codebook, the figures of one process, errors on all of them, and an end when one dies.

    python tests/reliability/processes.py --ranks 2 4
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from common import contents, differences, exit_code, small_config, start_child, use_few_images
from torch import Tensor

from vqlab.data import load_images
from vqlab.metrics import CodebookUsage
from vqlab.quantizers import DDCLCodebook, NonFiniteError, Quantizer, VQCodebook, build_quantizer
from vqlab.quantizers.latents import LatentNorm
from vqlab.training import load_run_config, train

#: Seconds after which a job counts as hung.
TIME_OUT = 60
STEPS = 4
BUSY = {"revival_threshold": 0.9, "revival_interval": 1, "ema_decay": 0.1}
STACKS: dict[str, list[dict[str, Any]]] = {
    "ddcl": [{"kind": "ddcl", "codebook_size": 16}],
    "vqvae, moving averages and revival": [{"kind": "vqvae", "codebook_size": 16, **BUSY}],
    "vqvae, gradient": [{"kind": "vqvae", "codebook_size": 16, "update": "gradient"}],
    "stack": [{"kind": "ddcl", "codebook_size": 16}, {"kind": "vqvae", "codebook_size": 8, **BUSY}],
}


def tokens(step: int, rank: int) -> Tensor:
    """Batches of another size on every rank; in the last step all tokens of rank 1 are one point."""
    draw = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(1 + 2 * ((rank + step) % 3), 6, 4, 3, generator=draw) + rank
    return torch.full_like(x, 0.5) if rank == 1 and step == STEPS - 1 else x


def flat(step: int, rank: int) -> Tensor:
    """The same as tokens of dimension 4; in step 0 rank 0 has none, in step 2 only the last rank has any."""
    x = tokens(step, rank).movedim(1, -1).reshape(-1, 6)[:, :4]
    empty = (step == 0 and rank == 0) or (step == 2 and rank < dist_size() - 1)
    return x[:0] if empty else x


def dist_size() -> int:
    return int(os.environ["WORLD_SIZE"])


def digest(module: torch.nn.Module) -> dict[str, str]:
    return {name: hashlib.sha256(value.numpy().tobytes()).hexdigest() for name, value in module.state_dict().items()}


def trained(levels: list[dict[str, Any]], rank: int) -> Quantizer:
    """A few steps as DistributedDataParallel takes them: parameters of rank 0, gradients averaged."""
    settings = {"topology": "residual", "normalize": True, "codebook_dim": 4, "levels": levels}
    quantizer = build_quantizer(6, settings).train()
    for p in quantizer.parameters():
        dist.broadcast(p.data, 0)
    optimizer = torch.optim.SGD([p for p in quantizer.parameters() if p.requires_grad], lr=0.1)
    for step in range(STEPS):
        x = tokens(step, rank)
        out = quantizer(x)
        optimizer.zero_grad()
        (out.loss + (out.quantized - x).square().mean()).backward()
        for group in optimizer.param_groups:
            for p in group["params"]:
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
        optimizer.step()
        quantizer.after_step()
    return quantizer


def single_levels(rank: int, feed: Callable[[int], Tensor]) -> dict[str, list[float]]:
    """Codebooks initialised from data of which one rank has none, then moved by counts; and the counts of their ids."""
    vq = VQCodebook(4, 8, init="data", ema_decay=0.5, revival_threshold=0.0).train()
    ddcl = DDCLCodebook(4, 8, init="data").train()
    for step in range(STEPS):
        for book in (vq, ddcl):
            if step == 1:  # the same start everywhere: what one process would draw is another sample
                grid = torch.linspace(-1, 2, 8)[:, None].expand(8, 4)
                book.codes.data.copy_(grid + 0.1 * torch.arange(4))
                if book is vq:
                    vq.cluster_sum.copy_(vq.codebook)
                    vq.cluster_size.fill_(1.0)
                else:
                    ddcl.covariance.copy_(torch.eye(4))
            book(feed(step))
            book.after_step()
    usage = CodebookUsage(8)
    ids = [vq.encode(feed(step)) for step in range(STEPS)]
    for each in ids:
        usage.update(each)
    return {
        "moving counts": vq.cluster_size.tolist(),
        "codes": vq.codebook.flatten().tolist(),
        "covariance": ddcl.covariance.flatten().tolist(),
        "counts": usage.compute()["counts"].tolist(),
        "perplexity": [float(usage.compute()["perplexity"])],
    }


def normalised(x: Tensor) -> tuple[Tensor, Tensor]:
    """Output and gradient of the normalisation over all ranks; the loss is the sum over the ranks."""
    x = x.clone().requires_grad_()
    out = LatentNorm(4).train()(x)
    (out.pow(3).sum() + out[:, 0].exp().sum()).backward()
    assert x.grad is not None
    return out.detach(), x.grad


def raised(action: Callable[[], object]) -> str:
    try:
        action()
    except (NonFiniteError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def bad_batch(rank: int, kind: str, value: float | None) -> str:
    """What a rank raises when rank 1 alone has a bad token (or, for None, no token)."""
    quantizer = build_quantizer(6, {"topology": "residual", "normalize": True, "codebook_dim": 4, "levels": STACKS[kind]}).train()
    x = tokens(0, rank)
    if rank == 1 and value is None:
        x = x[:0]
    elif rank == 1:
        assert value is not None
        x[0, 0, 0, 0] = value
    return raised(lambda: quantizer(x))


def quantizers(rank: int, folder: Path) -> None:
    """All that is measured on one rank."""
    torch.manual_seed(rank)  # the processes must not rely on equal generators
    time_out = timedelta(seconds=TIME_OUT / 2)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=dist_size(), timeout=time_out)
    result: dict[str, Any] = {}
    for name, levels in STACKS.items():
        quantizer = trained(levels, rank)
        books = quantizer.codebooks
        result[name] = {
            "finite": all(bool(torch.isfinite(v.float()).all()) for v in quantizer.state_dict().values()),
            "state": digest(quantizer),
            "revived": sum(int(book.revived) for book in books if isinstance(book, VQCodebook)),
        }
        if rank == 0:  # evaluation must not wait for the others
            quantizer.eval()(tokens(0, 0))
            quantizer.train().encode(tokens(0, 0))
    result["levels"] = single_levels(rank, lambda step: flat(step, rank))
    norm = normalised(tokens(0, rank).movedim(1, -1).reshape(-1, 6)[:, :4])
    result["norm"] = [part.tolist() for part in norm]
    result["raised"] = {
        f"{kind}, {value}": bad_batch(rank, kind, value) for kind in STACKS for value in (float("nan"), float("inf"), None)
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


class Failed(Exception):
    """What does not hold."""


def require(condition: bool, what: str) -> None:
    if not condition:
        raise Failed(what)


def run_ranks(size: int, folder: Path, action: Callable[[int], object], kill: int | None = None, when: Path | None = None) -> list[int]:
    """Exit codes of `size` forked processes with the environment that torchrun sets; `kill` ends that rank once `when` exists."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GROUP_RANK": 0}
    pids = []
    for rank in range(size):

        def child(rank: int = rank) -> None:
            os.environ |= {k: str(v) for k, v in {**shared, "RANK": rank, "LOCAL_RANK": rank, "TORCHELASTIC_RUN_ID": "x"}.items()}
            action(rank)

        pids.append(start_child(child, folder / f"log{rank}"))
    deadline = time.monotonic() + TIME_OUT
    if kill is not None:
        assert when is not None
        while not when.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(pids[kill], signal.SIGKILL)
    codes: list[int | None] = [None] * size
    while None in codes and time.monotonic() < deadline:
        for rank, pid in enumerate(pids):
            if codes[rank] is None and os.waitpid(pid, os.WNOHANG)[0]:
                codes[rank] = 0
        time.sleep(0.02)
    return codes  # type: ignore[return-value]

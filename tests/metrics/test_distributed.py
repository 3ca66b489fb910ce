"""Two gloo processes with batches of different size give the figures of one process that saw everything."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from vqlab.metrics import CodebookUsage, ReconstructionMetrics, SoftUsage

INDICES = torch.tensor([[0, 0, 0, 1, 5], [5, 5, 2, 1, 0]])  # rank 0 sees the first 7, rank 1 the last 3
ENTROPIES = torch.linspace(0, 1, 10)


def images() -> tuple[torch.Tensor, torch.Tensor]:
    target = torch.rand(10, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    return target + torch.linspace(0.01, 0.4, 10)[:, None, None, None], target


def figures(first: int, last: int) -> dict[str, Any]:
    usage, soft, quality = CodebookUsage(6), SoftUsage(6), ReconstructionMetrics()
    flat = INDICES.flatten()[first:last]
    usage.update(flat)
    one_hot = torch.nn.functional.one_hot(flat, 6).double()
    soft.update(one_hot.mean(0), ENTROPIES[first:last].mean(), last - first)
    reconstruction, target = images()
    quality.update(reconstruction[first:last], target[first:last])
    values = {**usage.compute(), **soft.compute(), **quality.compute()}
    return {name: value.tolist() for name, value in values.items()}


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    try:
        torch.save(figures(0, 7) if rank == 0 else figures(7, 10), f"{folder}/rank{rank}.pt")
    finally:
        dist.destroy_process_group()


def test_two_processes_agree_with_one(tmp_path: Path) -> None:
    context = mp.spawn(work, args=(str(tmp_path),), nprocs=2, join=False)
    try:
        for _ in range(2):
            if context.join(timeout=60):
                break
        else:
            pytest.fail("the two processes did not end within two minutes")
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
    whole = figures(0, 10)
    counts = whole.pop("counts")
    assert counts == [4, 2, 1, 0, 0, 3]
    assert whole["utilization"] == pytest.approx(4 / 6)
    assert whole["assignment_perplexity"] == pytest.approx(math.exp(0.5), rel=1e-6)
    for rank in range(2):
        result = torch.load(tmp_path / f"rank{rank}.pt", weights_only=True)
        assert result.pop("counts") == counts
        assert result == pytest.approx(whole, rel=1e-6)

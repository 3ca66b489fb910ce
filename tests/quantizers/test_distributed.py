"""Two gloo processes with batches of different size keep one codebook; as a script, this file is one of them."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from vqlab.quantizers import CODEBOOKS, Quantizer, VQCodebook, build_quantizer

ROOT = Path(__file__).resolve().parents[2]
STEPS = 3


def tokens(step: int, rank: int) -> Tensor:
    """5 images of rank 0, 2 of rank 1; in the last step all tokens of rank 1 are one point."""
    x = torch.randn(5 if rank == 0 else 2, 6, 4, 3, generator=torch.Generator().manual_seed(10 * step + rank)) + rank
    return torch.full_like(x, 0.5) if rank == 1 and step == STEPS - 1 else x


def make(kind: str, topology: str, **settings: object) -> Quantizer:
    sizes = (16, 8) if CODEBOOKS[kind].stackable else (16,)
    levels = [{"kind": kind, "codebook_size": k, **settings} for k in sizes]
    return build_quantizer(6, {"topology": topology, "normalize": True, "codebook_dim": 4, "levels": levels}).train()


def train(quantizer: Quantizer, rank: int) -> None:
    """Three steps as DistributedDataParallel would take them: parameters and buffers of rank 0, gradients averaged."""
    for start in quantizer.state_dict().values():
        dist.broadcast(start, 0)
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


def digest(quantizer: Quantizer) -> dict[str, str]:
    return {name: hashlib.sha256(value.numpy().tobytes()).hexdigest() for name, value in quantizer.state_dict().items()}


def ema_counts(rank: int) -> list[float]:
    """Moving counts and codes of one VQ level with the same start everywhere."""
    level = VQCodebook(4, 8, init="random", ema_decay=0.5, revival_threshold=0.0).train()
    dist.broadcast(level.codebook.data, 0)
    level.cluster_sum.copy_(level.codebook)
    for step in range(STEPS):
        level(tokens(step, rank).movedim(1, -1).reshape(-1, 6)[:, :4])
        level.after_step()
    return [*level.cluster_size.tolist(), *level.codebook.flatten().tolist()]


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(rank)  # the processes must not rely on equal generators
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    result: dict[str, object] = {"ema": ema_counts(rank)}
    for kind in CODEBOOKS:
        for topology in ("residual", "cascade"):
            quantizer = make(kind, topology)
            train(quantizer, rank)
            finite = all(bool(torch.isfinite(v.float()).all()) for v in quantizer.state_dict().values())
            result[f"{kind} {topology}"] = {"finite": finite, "state": digest(quantizer)}
            # Evaluation must not wait for the other process.
            if rank == 0:
                quantizer.eval()(tokens(0, 0))
                quantizer.train().encode(tokens(0, 0))
    busy = {"revival_threshold": 0.9, "revival_interval": 1, "ema_decay": 0.1}
    for name, settings in (
        ("gradient", {"update": "gradient"}),
        ("revival", busy),
        ("no revival", {"revival_threshold": 0.0}),
    ):
        quantizer = make("vqvae", "residual", **settings)
        train(quantizer, rank)
        revived = sum(int(level.revived) for level in quantizer.codebooks if isinstance(level, VQCodebook))
        result[name] = {"finite": True, "state": digest(quantizer), "revived": revived}
    (folder / f"rank{rank}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder = tmp_path_factory.mktemp("gloo")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([sys.executable, __file__, str(rank), str(folder)], env=environment, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=300)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


CASES = [
    *(f"{kind} {topology}" for kind in CODEBOOKS for topology in ("residual", "cascade")),
    "gradient",
    "revival",
    "no revival",
]


@pytest.mark.parametrize("case", CASES)
def test_all_state_is_byte_equal_on_both_ranks(case: str, results: list[dict]) -> None:
    first, second = (result[case] for result in results)
    assert first["finite"]
    assert second["finite"]
    different = [name for name in first["state"] if first["state"][name] != second["state"][name]]
    # What a rank has counted since its last step is its own; it is zero here, since every step was completed.
    assert different == []


def test_revival_took_place(results: list[dict]) -> None:
    assert results[0]["revival"]["revived"] > 0
    assert results[0]["revival"]["revived"] == results[1]["revival"]["revived"]
    assert results[0]["no revival"]["revived"] == 0


def test_counts_are_summed_over_the_ranks(results: list[dict]) -> None:
    assert results[0]["ema"] == results[1]["ema"]
    torch.manual_seed(0)
    level = VQCodebook(4, 8, init="random", ema_decay=0.5, revival_threshold=0.0).train()  # rank 0's start
    for step in range(STEPS):
        both = torch.cat([tokens(step, 0), tokens(step, 1)])
        level(both.movedim(1, -1).reshape(-1, 6)[:, :4])
        level.after_step()
    assert results[0]["ema"] == pytest.approx([*level.cluster_size.tolist(), *level.codebook.flatten().tolist()], rel=1e-4, abs=1e-5)
    assert float(level.cluster_size.sum()) == pytest.approx(8 / 8 + (7 * 12 - 8 / 8) * (1 - 0.5**3) + 7 * 0.5**3, rel=1e-5)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))

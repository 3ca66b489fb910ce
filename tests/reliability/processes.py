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
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from common import KINDS, contents, differences, small_config, start_child, use_few_images
from torch import Tensor

import vqlab.data
import vqlab.training.run
from vqlab.metrics import CodebookUsage
from vqlab.quantizers import DDCLCodebook, NonFiniteError, Quantizer, VQCodebook, build_quantizer
from vqlab.quantizers.latents import LatentNorm
from vqlab.tokenizer import Tokenizer
from vqlab.training import load_run_config, train
from vqlab.training.module import TokenizerModule

#: Seconds after which a job counts as hung.
TIME_OUT = 60
STEPS = 4
#: Training images of the uneven trainings: fewer than one full batch of every rank, so that none are left out and ranks get 7 and 6.
UNEVEN_IMAGES = 13
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
    result["raised"] = {f"{kind}, {value}": bad_batch(rank, kind, value) for kind in STACKS for value in (float("nan"), float("inf"), None)}
    (folder / f"rank{rank}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


class Failed(Exception):
    """What does not hold."""


def require(condition: bool, what: str) -> None:
    if not condition:
        raise Failed(what)


@dataclass
class Job:
    """codes: how each rank ended, None where it ran on.  seconds: from the disturbance (or the start) to the end."""

    codes: list[int | None]
    seconds: float
    logs: list[str]

    @property
    def ended_well(self) -> bool:
        return all(code == 0 for code in self.codes)


def run_ranks(size: int, folder: Path, action: Callable[[int], object], disturb: tuple[signal.Signals, int, Path] | None = None) -> Job:
    """`size` forked processes with the environment that torchrun sets. disturb: a signal to a rank once a file exists."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GROUP_RANK": 0}
    pids, logs = [], [folder / f"log{rank}" for rank in range(size)]
    for rank in range(size):

        def child(rank: int = rank) -> None:
            own = {**shared, "RANK": rank, "LOCAL_RANK": rank, "TORCHELASTIC_RUN_ID": "x"}
            os.environ.update({name: str(value) for name, value in own.items()})
            action(rank)

        logs[rank].unlink(missing_ok=True)
        pids.append(start_child(child, logs[rank]))
    start = time.monotonic()
    if disturb is not None:
        number, rank, when = disturb
        while not when.exists() and time.monotonic() < start + TIME_OUT:
            time.sleep(0.01)
        os.kill(pids[rank], number)
        start = time.monotonic()
    codes: list[int | None] = [None] * size
    while None in codes and time.monotonic() < start + TIME_OUT:
        for rank, pid in enumerate(pids):
            if codes[rank] is None:
                ended, status = os.waitpid(pid, os.WNOHANG)
                codes[rank] = os.waitstatus_to_exitcode(status) if ended else None
        if disturb is not None and disturb[0] == signal.SIGSTOP and codes.count(None) == 1:
            break  # all but the one that is stopped
        time.sleep(0.02)
    seconds = time.monotonic() - start
    for rank, pid in enumerate(pids):
        if codes[rank] is None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return Job(codes, seconds, [log.read_text() for log in logs])


# -- what must hold -----------------------------------------------------------------------------------------------------------------


def close(found: Any, wanted: Any) -> bool:
    return bool(torch.allclose(torch.tensor(found), torch.tensor(wanted), rtol=1e-4, atol=1e-5))


def check_quantizers(size: int, folder: Path) -> str:
    """Codebooks and counts of `size` processes against each other and against one process."""
    job = run_ranks(size, folder, lambda rank: quantizers(rank, folder))
    require(job.ended_well, f"exit codes {job.codes}: {job.logs}")
    results = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(size)]
    tensors = 0
    for name in STACKS:
        require(all(result[name]["finite"] for result in results), f"{name}: NaN or inf")
        require(all(result[name] == results[0][name] for result in results), f"{name}: the ranks differ")
        tensors += len(results[0][name]["state"])
    require(results[0]["vqvae, moving averages and revival"]["revived"] > 0, "nothing was revived")
    os.environ["WORLD_SIZE"] = str(size)
    one = single_levels(0, lambda step: torch.cat([flat(step, rank) for rank in range(size)]))
    for result in results:
        for figure, wanted in one.items():
            require(close(result["levels"][figure], wanted), f"{figure}: {result['levels'][figure]}, one process has {wanted}")
        require(result["levels"]["counts"] == one["counts"], "counts differ from those of one process")
    parts = [tokens(0, rank).movedim(1, -1).reshape(-1, 6)[:, :4] for rank in range(size)]
    for i, wanted_part in enumerate(normalised(torch.cat(parts))):
        found = torch.cat([torch.tensor(result["norm"][i]) for result in results])
        require(close(found.tolist(), wanted_part.tolist()), "the normalisation differs from that of one process")
    for case in results[0]["raised"]:
        for rank, result in enumerate(results):
            require(result["raised"][case].startswith(("NonFiniteError", "ValueError: a training batch")), f"{case}, rank {rank} raised "
                    f"{result['raised'][case]}")  # fmt: skip
    return (
        f"{tensors} tensors of {len(STACKS)} stacks byte-equal on all ranks, counts equal to one process, {len(results[0]['raised'])} bad "
        "batches of one rank raised on all"
    )


def digests_at_the_end(folder: Path) -> None:
    """Let each rank leave a digest of the tokenizer that it ends with."""

    def write(module: TokenizerModule) -> None:
        (folder / f"end{os.environ['RANK']}.json").write_text(json.dumps(digest(module.tokenizer)))

    TokenizerModule.on_train_end = write  # type: ignore[method-assign]


def check_training(kind: str, size: int, folder: Path) -> str:
    """A whole training on batches of different size, stopped once and resumed, against one that was left alone."""

    def run(name: str, resume: bool = False, max_steps: int = -1) -> Path:
        def action(rank: int) -> None:
            use_few_images(UNEVEN_IMAGES)
            digests_at_the_end(folder)
            path = folder / name
            if resume:
                train(load_run_config(path), resume=True)
            else:
                train(small_config(kind, folder, name, epochs=4), max_steps=max_steps)

        job = run_ranks(size, folder, action)
        wanted = (0,) if max_steps < 0 else (0, 70)
        require(all(code in wanted for code in job.codes), f"{kind}: exit codes {job.codes}: {job.logs}")
        return folder / name

    whole = run("whole")
    ends = [json.loads((folder / f"end{rank}.json").read_text()) for rank in range(size)]
    require(all(end == ends[0] for end in ends), f"{kind}: the ranks end with different tokenizers")
    run("parts", max_steps=2)
    different = differences(contents(whole), contents(run("parts", resume=True)))
    require(not different, f"{kind}: a resumed run differs: {different[:5]}")
    tokenizer = Tokenizer.from_pretrained(whole / "tokenizer")
    use_few_images(UNEVEN_IMAGES)
    test = vqlab.training.run.load_images("sample", "data").test
    ids = tokenizer.encode(test.images)
    counts = np.load(whole / "counts.npz")
    for level, size_of_book in enumerate(tokenizer.quantizer.codebook_sizes):
        wanted = torch.bincount(ids[..., level].flatten(), minlength=size_of_book).numpy()
        require(bool((counts[f"level{level + 1}"] == wanted).all()), f"{kind}: counts of the test images are not those of one process")
    for name in ("whole", "parts"):
        shutil.rmtree(folder / name)
    return f"{kind}: {len(ends[0])} tensors byte-equal on all ranks, counts of the test images equal to one process, exact resume"


def check_disturbed(size: int, folder: Path, number: signal.Signals) -> str:
    """One rank dies, or stops answering, in the midst of a training."""
    name = number.name.lower()

    def action(rank: int) -> None:
        use_few_images()
        run = {"timeout": 10} if number == signal.SIGSTOP else {}
        train(small_config("vqvae", folder, name, epochs=10_000, run=run))

    job = run_ranks(size, folder, action, (number, size - 1, folder / name / "checkpoints" / "last.ckpt"))
    others = job.codes[:-1]
    require(None not in others and 0 not in others, f"{name}: exit codes {job.codes} after {job.seconds:.0f} s")
    messages = {log.strip().splitlines()[-1][:100] for log in job.logs[:-1]}
    what = "killed" if number == signal.SIGKILL else "stopped (run.timeout 10)"
    return f"one rank {what}: the others end with an error after {job.seconds:.1f} s: {sorted(messages)[0]}"


def check_bad_pixel(size: int, folder: Path) -> str:
    """One pixel of one rank becomes NaN in the midst of a training."""

    def action(rank: int) -> None:
        use_few_images()
        unit = TokenizerModule._unit

        def bad(module: TokenizerModule, images: Tensor) -> Tensor:
            images = unit(module, images).clone()
            if module.training and module.global_step == 2 and rank == size - 1:
                images[0, 0, 0, 0] = float("nan")
            return images

        TokenizerModule._unit = bad  # type: ignore[method-assign]
        train(small_config("vqvae", folder, "pixel"))

    job = run_ranks(size, folder, action)
    require(job.codes == [70] * size, f"exit codes {job.codes}")
    require(all("NonFiniteError: step 2" in log for log in job.logs), f"messages {job.logs}")
    return f"one NaN pixel of one rank: all ranks end with an error that names the step after {job.seconds:.1f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    options = parser.parse_args()
    torch.set_num_threads(1)
    vqlab.data.load_images("sample")
    failed = False
    for size in options.ranks:
        checks: list[Callable[[Path], str]] = [
            lambda folder, size=size: check_quantizers(size, folder),  # type: ignore[misc]
            *(lambda folder, size=size, kind=kind: check_training(kind, size, folder) for kind in KINDS),  # type: ignore[misc]
            *(lambda folder, size=size, n=n: check_disturbed(size, folder, n) for n in (signal.SIGKILL, signal.SIGSTOP)),  # type: ignore[misc]
            lambda folder, size=size: check_bad_pixel(size, folder),  # type: ignore[misc]
        ]
        for check in checks:
            with tempfile.TemporaryDirectory() as place:
                try:
                    print(f"{size} processes: {check(Path(place))}", flush=True)
                except Failed as error:
                    failed = True
                    print(f"{size} processes: FAILED: {error}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

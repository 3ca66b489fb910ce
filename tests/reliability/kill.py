"""Kill trainings at random moments, resume them, and compare the end with that of a run that was left alone, byte for byte.

    python tests/reliability/kill.py --points 20

Every second point is killed by the clock, anywhere between the start and the end of the run; the others within the writing of a randomly
chosen checkpoint: half of it on disk, complete but not yet in its place, or just moved there.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch
from common import KINDS, contents, differences, exit_code, small_config, start_child, use_few_images

from vqlab.config import TrainConfig
from vqlab.training import load_run_config, train

#: Checkpoints of a run: every 3 steps within an epoch of 8, and after each of the 2 epochs.
EVERY, CHECKPOINTS = 3, 6
STAGES = ("half written", "written, not in place", "in place")


@dataclass
class Report:
    """equal: points whose end was byte-equal.  different: what differed elsewhere.  moments: how often each kind of moment was hit."""

    equal: int = 0
    different: list[str] = field(default_factory=list)
    moments: Counter[str] = field(default_factory=Counter)
    steps: list[int] = field(default_factory=list)


def kill_in_checkpoint(number: int, stage: str) -> None:
    """Let this process end, as by `kill -9`, in the writing of its checkpoint `number` (0, 1, ...)."""
    save, replace, seen = torch.save, os.replace, [0]

    def counted(content: object, path: Path) -> None:
        save(content, path)
        if seen[0] == number and stage == "half written":
            os.truncate(path, os.path.getsize(path) // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    def moved(source: Path, target: Path) -> None:
        last = Path(target).name == "last.ckpt" and seen[0] == number
        if last and stage == "written, not in place":
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        seen[0] += Path(target).name == "last.ckpt"

    torch.save, os.replace = counted, moved


def run_point(kind: str, root: Path, number: int, seconds: float, draw: random.Random, report: Report, expected: dict[str, object]) -> None:
    """One training, killed once and resumed; its end compared with `expected`."""
    config = small_config(kind, root, f"point{number}", run={"checkpoint_every": EVERY})
    folder, log = root / f"point{number}", root / f"point{number}.log"
    by_clock = number % 2 == 0
    stage, checkpoint = draw.choice(STAGES), draw.randrange(CHECKPOINTS)

    def attempt() -> None:
        if not by_clock:
            kill_in_checkpoint(checkpoint, stage)
        train(config)

    pid = start_child(attempt, log)
    if by_clock:
        time.sleep(draw.uniform(0.05, 1.0) * seconds)
        os.kill(pid, signal.SIGKILL)
    code = exit_code(pid)
    if code not in (0, -signal.SIGKILL):
        raise SystemExit(f"the training failed by itself:\n{log.read_text()}")
    step = resume(config, folder, log)
    report.moments["after its end" if code == 0 else "by the clock" if by_clock else stage] += 1
    report.steps.append(step)
    different = differences(expected, contents(folder))
    leftovers = [str(path) for path in folder.rglob("*.tmp")]
    if different or leftovers:
        report.different.append(f"point {number} (resumed from step {step}): {', '.join([*different, *leftovers][:6])}")
    else:
        report.equal += 1
    shutil.rmtree(folder)


def resume(config: TrainConfig, folder: Path, log: Path) -> int:
    """Go on as a user would; the step that the checkpoint was of, 0 where there was none yet."""
    path = folder / "checkpoints" / "last.ckpt"
    if path.is_file():
        step = int(torch.load(path, weights_only=True)["global_step"])
        pid = start_child(lambda: train(load_run_config(folder), resume=True), log)
    else:
        step = 0
        shutil.rmtree(folder, ignore_errors=True)
        pid = start_child(lambda: train(config), log)
    if exit_code(pid) != 0:
        raise SystemExit(f"the training cannot be resumed:\n{log.read_text()}")
    return step


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=20, help="kills of each kind of run")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=["ddcl", "vqvae", "residual"])
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    torch.set_num_threads(1)
    use_few_images()
    failed = False
    for kind in options.kinds:
        with tempfile.TemporaryDirectory() as place:
            root, draw, report = Path(place), random.Random(f"{kind} {options.seed}"), Report()
            # The reference writes no checkpoints within its epochs: they must not change what is learned.
            start = time.perf_counter()
            if exit_code(start_child(lambda root=root, kind=kind: train(small_config(kind, root, "whole")), root / "log")) != 0:
                raise SystemExit((root / "log").read_text())
            seconds = time.perf_counter() - start
            expected = contents(root / "whole")
            for number in range(options.points):
                run_point(kind, root, number, seconds, draw, report, expected)
            moments = ", ".join(f"{count} {name}" for name, count in sorted(report.moments.items()))
            steps = f"resumed from steps {min(report.steps)} to {max(report.steps)} of 16"
            print(
                f"{kind}: {report.equal} of {options.points} resumed runs end byte-equal "
                f"({len(expected)} tensors, figures and files; killed: {moments}; {steps})",
                flush=True,
            )
            for line in report.different:
                print(f"  {line}", flush=True)
            failed |= bool(report.different)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

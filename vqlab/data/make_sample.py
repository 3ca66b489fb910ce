"""Make the sample of `vqlab.data.sample` from the full CIFAR-10.

Run as `python -m vqlab.data.make_sample [--root data]`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vqlab.data.arrays import Split
from vqlab.data.cifar10 import CLASSES, load_cifar10
from vqlab.data.sample import FOLDER

SEED = 0
PER_CLASS = {"train": 80, "test": 20}


def make_sample(root: Path, target: Path) -> None:
    """Write one PNG strip per split and class into `target`: PER_CLASS images drawn at random."""
    data = load_cifar10(root)
    generator = np.random.default_rng(SEED)
    target.mkdir(parents=True, exist_ok=True)
    for split, part in (("train", data.train), ("test", data.test)):
        for label, name in enumerate(CLASSES):
            strip = _draw(part, label, PER_CLASS[split], generator)
            Image.fromarray(strip).save(target / f"{split}_{name}.png", optimize=True)


def _draw(part: Split, label: int, count: int, generator: np.random.Generator) -> np.ndarray:
    places = np.flatnonzero(part.labels.numpy() == label)
    chosen = np.sort(generator.choice(places, count, replace=False))
    return part.plain(torch.from_numpy(chosen)).numpy().transpose(0, 2, 3, 1).reshape(-1, 32, 3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=make_sample.__doc__)
    parser.add_argument("--root", type=Path, default=Path("data"), help="folder with CIFAR-10")
    parser.add_argument("--target", type=Path, default=Path(__file__).parent / FOLDER)
    arguments = parser.parse_args()
    make_sample(arguments.root, arguments.target)

"""`vqlab evaluate`: the figures of a saved tokenizer on a test split."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from jsonargparse import ArgumentParser, Namespace

from vqlab.cli.command import Command
from vqlab.cli.shared import add_data_arguments, add_tokenizer_argument, data_options, load_tokenizer
from vqlab.data import BatchLoader, FilesConfig, ImageSize, load_images
from vqlab.evaluation import Evaluation, check_sides
from vqlab.images import as_unit_images
from vqlab.losses import FEATURE_NETWORKS, FeatureDistance
from vqlab.metrics.features import IMAGE_FEATURES
from vqlab.progress import progress
from vqlab.reconstruction_distance import ReconstructionDistances
from vqlab.training.runtime import choose_runtime, tune_process


def add_evaluate_arguments(parser: ArgumentParser) -> None:
    """Options of `vqlab evaluate`."""
    add_tokenizer_argument(parser)
    add_data_arguments(parser)
    parser.add_argument("--batch_size", type=int, default=500, help="images per batch; the figures do not depend on it")
    parser.add_argument("--precision", type=str, default="float32", help="float32, bf16 or auto")
    parser.add_argument(
        "--fd", type=str | None, default=None, help=f"also measure Fréchet distances, with features of {', '.join(IMAGE_FEATURES)}"
    )
    parser.add_argument("--features", type=str | None, default=None, help=f"also the distance of features: {', '.join(FEATURE_NETWORKS)}")
    parser.add_argument("--json", action="store_true", help="print JSON")


@torch.no_grad()
def evaluate(
    folder: Path,
    data: str,
    data_root: Path,
    batch_size: int,
    precision: str = "float32",
    image_size: ImageSize = None,
    files: FilesConfig | None = None,
    fd: str | None = None,
    features: str | None = None,
) -> dict[str, float]:
    """Every figure of `vqlab.evaluation.Evaluation` on the test split of `data`; with `fd` also the Fréchet distances between its images
    and their reconstructions, hard/fd_NAME and soft/fd_NAME (rFID where NAME is inception_v3).

    Raises VqlabError where the images' sides are no multiples of the tokenizer's factor.
    """
    tokenizer = load_tokenizer(folder)
    images_of = load_images(data, data_root, image_size=image_size, files=files)
    check_sides(images_of.test.image_size, tokenizer)
    runtime = choose_runtime("cpu" if not torch.cuda.is_available() else "gpu", precision)
    device = torch.device("cuda" if runtime.accelerator == "gpu" else "cpu")
    tokenizer.to(device=device, memory_format=runtime.memory_format)  # type: ignore[call-overload]
    evaluation = Evaluation(tokenizer, FeatureDistance(features) if features else None).to(device)
    distances = ReconstructionDistances(fd, tokenizer).to(device) if fd else None
    loader = BatchLoader(images_of.test, batch_size, shuffle=False, augment=False, seed=0)
    for batch in progress(loader, "evaluate"):
        images = as_unit_images(batch.images).to(device, memory_format=runtime.memory_format)
        with torch.autocast(device.type, torch.bfloat16, enabled=runtime.bf16):
            evaluation.update(tokenizer, images)
            if distances is not None:
                distances.update(tokenizer, images)
    return evaluation.compute() | (distances.compute() if distances is not None else {})


def run_evaluate(options: Namespace) -> None:
    """Print the figures, one a line, or as JSON."""
    tune_process()
    figures = evaluate(
        options.tokenizer,
        batch_size=options.batch_size,
        precision=options.precision,
        fd=options.fd,
        features=options.features,
        **data_options(options),
    )
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    width = max(map(len, figures))
    for name, value in figures.items():
        print(f"{name:{width}}  {value:.6g}")


EVALUATE = Command(
    "evaluate",
    help="measure a tokenizer",
    description="Figures of a tokenizer on a data set's test split.",
    usage="TOKENIZER [--option VALUE ...]",
    add_arguments=add_evaluate_arguments,
    run=run_evaluate,
)

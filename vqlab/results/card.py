"""Releasing a tokenizer: a folder that holds weights, configuration and a card with measured figures."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

from vqlab.errors import VqlabError
from vqlab.results.run import Run
from vqlab.storage import CONFIG_NAME, WEIGHTS_NAME, write_atomically, write_json

FIGURES = {
    "hard/psnr": ("PSNR of ids decoded, mean over images", "dB"),
    "hard/psnr_pooled": ("PSNR of ids decoded, from the pooled mse", "dB"),
    "hard/ssim": ("SSIM of ids decoded", ""),
    "soft/psnr": ("PSNR of soft centroids decoded, mean over images", "dB"),
    "gap": ("soft - hard PSNR", "dB"),
}


def model_card(run: Run, name: str, figures: dict[str, float], data: str) -> str:
    """Markdown card: what it is, how to load it, how it was trained, what `vqlab evaluate` measured."""
    sizes = run.summary["codebook_size"]
    rows = [f"| {text} | {figures[key]:.4g} {unit} |" for key, (text, unit) in FIGURES.items() if key in figures]
    for level, size in enumerate(sizes, 1):
        rows.append(f"| codes used, level {level} | {figures[f'level{level}/utilization']:.1%} of {size} |")
        rows.append(f"| perplexity, level {level} | {figures[f'level{level}/perplexity']:.1f} |")
    bits = run.summary["bits_per_image"]
    return f"""# {name}

Image tokenizer for 32x32 colour images: quantizer `{run.quantizer}`, {" + ".join(map(str, sizes))} codes,
{bits:g} bits per image, {run.summary["parameters"]:,} parameters, trained {run.summary["epochs"]} epochs.

```python
import vqlab

tokenizer = vqlab.Tokenizer.from_pretrained("checkpoints/{name}")
```

Trained by `{run.summary["command"]}` ({run.summary["seconds"] / 60:.0f} minutes).

Measured on the {data} test split by `vqlab evaluate checkpoints/{name} --data {data}` (float32):

| figure | value |
|---|---|
{chr(10).join(rows)}

`evaluation.json` beside this card holds every figure.
"""


def release(run: Run, folder: Path, figures: dict[str, float], data: str) -> Path:
    """Copy the run's tokenizer into `folder` with a card and evaluation.json.

    VqlabError if the run has no quantizer, hence no ids, or if `folder` holds something else already.
    """
    if run.levels == 0:
        raise VqlabError(f"{run.path} has no quantizer: a plain autoencoder gives no ids and is not released as a tokenizer")
    if folder.is_file():
        raise VqlabError(f"{folder} is a file, not a folder")
    if folder.exists() and any(folder.iterdir()) and not (folder / CONFIG_NAME).is_file():
        raise VqlabError(f"{folder} is not empty and is no tokenizer: it is left alone")
    for file in (WEIGHTS_NAME, CONFIG_NAME):
        source = run.path / "tokenizer" / file
        if not source.is_file():
            raise VqlabError(f"{run.path} holds no tokenizer: {source} is missing")
        write_atomically(folder / file, partial(shutil.copyfile, source))
    write_json(folder / "evaluation.json", figures)
    card = model_card(run, folder.name, figures, data)
    write_atomically(folder / "README.md", lambda temporary: temporary.write_text(card, encoding="utf-8"))
    return folder

"""`vqlab info`: what a folder is, and its figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from vqlab.cli.command import Command
from vqlab.errors import VqlabError
from vqlab.hub import FIGURES_NAME
from vqlab.storage import CONFIG_NAME, MAX_CONFIG_BYTES, WEIGHTS_NAME, read_json
from vqlab.tokenizer import Tokenizer
from vqlab.tokens import TokenDataset
from vqlab.tokens.index import INDEX_NAME, PLAN_NAME, read_plan

_FIGURES = ("hard/psnr", "hard/psnr_pooled", "hard/ssim", "soft/psnr", "gap")


def add_info_arguments(parser: ArgumentParser) -> None:
    """Options of `vqlab info`."""
    parser.add_argument("path", type=Path, help="folder of a tokenizer, a run, or tokens")
    parser.add_argument("--check", action="store_true", help="tokens: read all of them and compare every SHA-256")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_info(options: Namespace) -> None:
    """Print what is known about the folder, one line for each figure, or as JSON."""
    facts = describe(options.path, options.check)
    if options.json:
        print(json.dumps(facts, indent=2))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        text = f"{value:.6g}" if isinstance(value, float) else " ".join(map(str, value)) if isinstance(value, list) else str(value)
        print(f"{name:{width}}  {text}")


def describe(path: Path, check: bool = False) -> dict[str, Any]:
    """Facts about a folder: "kind" (tokenizer, run, tokens), then what belongs to it. VqlabError where it is none of these."""
    if (path / INDEX_NAME).exists() or (path / PLAN_NAME).exists():
        return _tokens(path, check)
    if (path / "config.yaml").exists():
        return _run(path)
    if (path / CONFIG_NAME).exists():
        return {"kind": "tokenizer", **_tokenizer(path)}
    raise VqlabError(f"{path} is neither a tokenizer, nor a run, nor tokens")


def _tokenizer(path: Path) -> dict[str, Any]:
    tokenizer = Tokenizer.from_pretrained(path)
    quantizer = tokenizer.quantizer
    facts = {
        "fingerprint": tokenizer.fingerprint,
        "encoder": tokenizer.backbone_name,
        "quantizer": [book.kind for book in quantizer.codebooks] or ["none"],
        "topology": quantizer.topology,
        "codebook_sizes": quantizer.codebook_sizes,
        "codebook_dim": quantizer.codebook_dim,
        "latent_dim": quantizer.dim,
        "bits_per_token": float(quantizer.bits_per_token) if quantizer.codebook_sizes else None,
        "pixels_per_token": [tokenizer.factor] * 2,
        "sequence": tokenizer.quantizes_sequences,
        "parameters": tokenizer.num_parameters,
        "bytes": (path / WEIGHTS_NAME).stat().st_size,
    }
    return {**{name: value for name, value in facts.items() if value is not None}, **_figures(path / FIGURES_NAME)}


def _figures(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = read_json(path, MAX_CONFIG_BYTES, missing=f"{path} is missing")
    if not isinstance(content, dict) or not all(isinstance(value, int | float) for value in content.values()):
        raise VqlabError(f"{path} does not hold figures")
    return {name: value for name, value in content.items() if name in _FIGURES or name.endswith(("/utilization", "/perplexity"))}


def _run(path: Path) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": "run", "complete": (path / "summary.json").is_file()}
    if facts["complete"]:
        summary = read_json(path / "summary.json", MAX_CONFIG_BYTES, missing=f"{path} has no summary.json")
        if not isinstance(summary, dict) or not isinstance(summary.get("test", {}), dict):
            raise VqlabError(f"{path / 'summary.json'} is not the summary of a run")
        facts |= {name: summary[name] for name in ("name", "epochs", "seconds", "command") if name in summary}
        figures = {name.removeprefix("test/"): value for name, value in summary.get("test", {}).items()}
        facts |= {name: value for name, value in figures.items() if name in _FIGURES}
    facts["checkpoint"] = (path / "checkpoints" / "last.ckpt").is_file()
    return facts | (_tokenizer(path / "tokenizer") if (path / "tokenizer" / CONFIG_NAME).is_file() else {})


def _tokens(path: Path, check: bool) -> dict[str, Any]:
    if not (path / INDEX_NAME).exists():
        plan = read_plan(path)
        assert plan is not None
        done = sum((path / f"shard-{number:05d}.safetensors").is_file() for number in range(plan.shards))
        facts = {"source": plan.source, "images": plan.entries, "fingerprint": plan.fingerprint}
        return {"kind": "tokens", "complete": False, "shards": f"{done} of {plan.shards}", **facts}
    tokens = TokenDataset(path, verify=check)
    index = tokens.index
    if check:
        for number in range(len(index.shards)):
            tokens.shard(number).all_ids()
    return {
        "kind": "tokens",
        "complete": True,
        **({"checked": True} if check else {}),
        "fingerprint": index.plan.fingerprint,
        "source": index.plan.source,
        "images": index.images,
        "skipped": index.skipped,
        "tokens": index.tokens,
        "grid": list(index.grid) if index.grid else "different",
        "codebook_sizes": list(index.plan.codebook_sizes),
        "classes": len(index.plan.classes or ()),
        "precision": index.plan.precision,
        "shards": len(index.shards),
        "bytes": sum(shard.bytes for shard in index.shards),
        "vqlab_version": index.vqlab_version,
    }


INFO = Command(
    "info",
    help="say what a folder is",
    description="What a folder is (tokenizer, run, tokens), its sizes, its figures and its fingerprint.",
    usage="PATH [--check] [--json]",
    add_arguments=add_info_arguments,
    run=run_info,
)

"""Feed thousands of damaged and hostile files to everything that reads them.

    python tests/reliability/fuzz.py --cases 10000

A run's configuration and checkpoint, a tokenizer's configuration and weights, the index and a shard of token files are changed at random:
bytes flipped, cut, inserted and repeated; values replaced by others of the wrong type or size; keys added, removed and renamed; versions of
the future; paths that leave the folder; objects that would run code. Each case must either be refused by one line of `VqlabError` or give
what the unchanged files give. The process' memory is limited, and the folder of a refused file must not have changed.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import io
import json
import os
import pickle
import random
import resource
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml
from common import small_config, use_few_images

from vqlab.data import load_images
from vqlab.errors import VqlabError
from vqlab.tokenizer import Tokenizer
from vqlab.tokens import EncodeOptions, TokenDataset, encode_images, open_images
from vqlab.training import load_run_config, train
from vqlab.training.checkpoint import check_checkpoint
from vqlab.training.run import build_module
from vqlab.training.runtime import Runtime

#: What a case may add to the memory of the process, in MiB.
MEMORY = 512
HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, -(10**18), 0.0, -0.5, 1e308, 1e-320, float("nan"), float("inf"), "", "x", "1", "nan",
    "../../etc/passwd", "/dev/zero", "a\0b", "\u202e", "x" * 10_000, "!!python/object/apply:os.system ['true']", [], [[]], {}, {"a": 1},
    [1, 2], [10**12], ["x"], {"kind": "ddcl"}, [None] * 1000, "ddcl", "none", "vqvae", "auto", "cuda",
]  # fmt: skip


class Payload:
    """Unpickling this writes a file: proof that code ran."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


def mutate_bytes(data: bytes, draw: random.Random) -> bytes:
    """One to four random changes of the bytes."""
    content = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        place, length = draw.randrange(len(content) + 1), draw.randint(1, 64)
        match draw.randrange(7):
            case 0:
                content[place : place + 1] = bytes([draw.randrange(256)])
            case 1:
                del content[place : place + length]
            case 2:
                content[place:place] = draw.randbytes(length)
            case 3:
                del content[place:]
            case 4:
                content[place : place + 8] = (draw.choice([2**63 - 1, 2**32, 0, 2**64 - 1])).to_bytes(8, "little")
            case 5:
                content[place:place] = content[: length * 8]
            case _:
                content[place : place + length] = bytes(length)
        if not content:
            break
    return bytes(content)


def mutate_tree(tree: Any, draw: random.Random) -> Any:
    """One to three random changes of plain nested values."""
    tree = copy.deepcopy(tree)
    for _ in range(draw.randint(1, 3)):
        node, path = tree, 0
        while True:
            children = list(node) if isinstance(node, dict) else list(range(len(node))) if isinstance(node, list) else []
            if not children:
                break
            key = draw.choice(children)
            if isinstance(node[key], (dict, list)) and node[key] and draw.random() < 0.7 and path < 6:
                node, path = node[key], path + 1
                continue
            match draw.randrange(5):
                case 0:
                    del node[key]
                case 1 if isinstance(node, dict):
                    node[draw.choice(["nosuch", "__class__", "format_version", "", "a" * 300])] = draw.choice(HOSTILE)
                case 2 if isinstance(node, dict):
                    node[str(key) + "x"] = node.pop(key)
                case _:
                    node[key] = copy.deepcopy(draw.choice(HOSTILE))
            break
    return tree


Check = Callable[[], object]


class Fuzzer:
    """The kinds of files, whole as they were written, and a check for each."""

    def __init__(self, place: Path, seed: int) -> None:
        self.draw = random.Random(seed)
        self.place = place
        self.folder = train(small_config("residual", place / "runs", "run"), max_steps=3)
        self.tokenizer_folder = place / "tokenizer"
        data = vqlab_data()
        config = load_run_config(self.folder)
        self.module = build_module(config, data, Runtime("cpu", False, False), 16)
        self.module.tokenizer.save_pretrained(self.tokenizer_folder)
        self.images = data.test.images[:2]
        self.ids = Tokenizer.from_pretrained(self.tokenizer_folder).encode(self.images)
        self.checkpoint = self.folder / "checkpoints" / "last.ckpt"
        self.payload = place / "code-ran"
        self.targets = {
            "run configuration": (self.folder / "config.yaml", self.config_case, self.read_config),
            "checkpoint": (self.checkpoint, self.checkpoint_case, self.read_checkpoint),
            "tokenizer configuration": (self.tokenizer_folder / "config.json", self.json_case, self.read_tokenizer),
            "tokenizer weights": (self.tokenizer_folder / "model.safetensors", self.weights_case, self.read_tokenizer),
        }
        self.tokens = place / "tokens"
        pictures = open_images("sample:test")
        few = dataclasses.replace(pictures, names=pictures.names[:40], labels=pictures.labels[:40])  # type: ignore[index]
        encode_images(Tokenizer.from_pretrained(self.tokenizer_folder), few, self.tokens, EncodeOptions(shard_size=16))
        self.token_ids = [*TokenDataset(self.tokens, labels=True)]
        self.targets |= {
            "token index": (self.tokens / "index.json", self.json_case, self.read_tokens),
            "token shard": (self.tokens / "shard-00001.safetensors", self.weights_case, self.read_tokens),
        }
        self.originals = {name: target[0].read_bytes() for name, target in self.targets.items()}
        self.content = torch.load(self.checkpoint, weights_only=True)

    # -- cases ----------------------------------------------------------------------------------------------------------------------

    def config_case(self, original: bytes) -> bytes:
        if self.draw.random() < 0.3:
            return mutate_bytes(original, self.draw)
        return yaml.safe_dump(mutate_tree(yaml.safe_load(original), self.draw)).encode()

    def json_case(self, original: bytes) -> bytes:
        if self.draw.random() < 0.3:
            return mutate_bytes(original, self.draw)
        return json.dumps(mutate_tree(json.loads(original), self.draw)).encode()

    def weights_case(self, original: bytes) -> bytes:
        choice = self.draw.random()
        if choice < 0.6:
            return mutate_bytes(original, self.draw)
        length = int.from_bytes(original[:8], "little")
        header = json.loads(original[8 : 8 + length])
        if choice < 0.9:  # a header that says something else than the bytes behind it
            text = json.dumps(mutate_tree(header, self.draw)).encode()
            return len(text).to_bytes(8, "little") + text + original[8 + length :]
        return self.draw.choice([pickle.dumps(Payload(self.payload)), b"", original[:8], (2**62).to_bytes(8, "little") + original[8:]])

    def checkpoint_case(self, original: bytes) -> bytes:
        choice = self.draw.random()
        if choice < 0.6:
            return mutate_bytes(original, self.draw)
        if choice < 0.65:
            return pickle.dumps(Payload(self.payload))
        content = dict(self.content)
        if choice < 0.7:
            content[self.draw.choice(["callbacks", "hyper", "loops"])] = Payload(self.payload)
        elif choice < 0.85:
            key = self.draw.choice(list(content))
            if self.draw.random() < 0.4:
                del content[key]
            else:
                content[key] = copy.deepcopy(self.draw.choice(HOSTILE))
        else:
            state = dict(content["state_dict"])
            key = self.draw.choice(list(state))
            state[key] = self.draw.choice([torch.zeros(3), torch.zeros(1).expand(10**6), "x", None, torch.zeros(0, 5), 10**30])
            content["state_dict"] = state
        target = self.place / "case.ckpt"
        torch.save(content, target)
        return target.read_bytes()

    # -- readers --------------------------------------------------------------------------------------------------------------------

    def read_config(self) -> None:
        config = load_run_config(self.folder)
        if Path(config.run.root) != self.folder.parent or config.name != self.folder.name:
            raise AssertionError("the configuration leads out of its folder")
        with torch.device("meta"):
            Tokenizer(config.tokenizer_config())

    def read_checkpoint(self) -> None:
        check_checkpoint(self.checkpoint, self.module)
        # What is not refused at once is gone on from, in a copy.
        with tempfile.TemporaryDirectory() as place:
            copied = Path(shutil.copytree(self.folder, Path(place) / "run"))
            with contextlib.redirect_stdout(io.StringIO()):
                train(load_run_config(copied), resume=True, max_steps=4)

    def read_tokenizer(self) -> None:
        if not torch.equal(Tokenizer.from_pretrained(self.tokenizer_folder).encode(self.images), self.ids):
            raise AssertionError("a damaged tokenizer gives other ids")

    def read_tokens(self) -> None:
        for mine, want in zip(TokenDataset(self.tokens, labels=True, verify=True), self.token_ids, strict=True):
            if not torch.equal(mine.ids, want.ids) or mine.label != want.label:
                raise AssertionError("damaged token files give other ids")

    # -- the run --------------------------------------------------------------------------------------------------------------------

    def case(self, name: str) -> str:
        """One case of a kind of file: "refused", "accepted", or what is wrong."""
        path, make, read = self.targets[name]
        changed = make(self.originals[name])
        path.write_bytes(changed)
        before = listing(self.place)
        try:
            read()
            result = "accepted"
        except VqlabError as error:
            message = str(error)
            result = "refused" if message.strip() and "\n" not in message.strip() else f"not one line: {message!r}"
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"
        if listing(self.place) != before:
            result = "the folder has changed"
        if self.payload.exists():
            self.payload.rmdir()
            result = "code ran"
        if result not in ("refused", "accepted"):
            (Path(tempfile.gettempdir()) / f"fuzz-{name.replace(' ', '-')}").write_bytes(changed)
        path.write_bytes(self.originals[name])
        return result


def listing(folder: Path) -> list[tuple[str, int]]:
    return [(str(path), path.stat().st_size) for path in sorted(folder.rglob("*"))]


def vqlab_data() -> Any:
    import vqlab.training.run

    return vqlab.training.run.load_images("sample", "data")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    load_images("sample")
    use_few_images()
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (warnings of settings that are missing)
    with tempfile.TemporaryDirectory() as place:
        fuzzer = Fuzzer(Path(place), options.seed)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY * 2**20, resource.RLIM_INFINITY))
        start, peak = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        results: dict[str, Counter[str]] = {name: Counter() for name in fuzzer.targets}
        names = list(fuzzer.targets)
        for number in range(options.cases):
            name = names[number % len(names)]
            results[name][fuzzer.case(name)] += 1
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) / 1024
    wrong = 0
    for name, counts in results.items():
        others = {text: count for text, count in counts.items() if text not in ("refused", "accepted")}
        wrong += sum(others.values())
        print(f"{name}: {counts.total()} cases, {counts['refused']} refused, {counts['accepted']} mean the same or are valid")
        for text, count in sorted(others.items(), key=lambda item: -item[1])[:12]:
            print(f"  {count} x {text[:300]}")
    print(f"{wrong} of {options.cases} cases wrong; memory grew by {grown:.0f} MiB; {time.perf_counter() - start:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())

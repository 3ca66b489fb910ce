"""Run `vqlab encode` over damaged, hostile and odd image files: each is encoded or reported, and the run finishes.

python tests/reliability/images.py --files 1000
"""

from __future__ import annotations

import argparse
import io
import json
import random
import resource
import struct
import sys
import tempfile
import time
import zlib
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from common import exit_code, small_config, start_child
from fuzz import mutate_bytes
from PIL import Image

from vqlab.cli.encode import SOME_SKIPPED
from vqlab.cli.main import main as vqlab
from vqlab.tokenizer import Tokenizer
from vqlab.tokens import TokenDataset

FORMATS: dict[str, dict[str, object]] = {
    "png": {}, "jpg": {}, "webp": {}, "tif": {"compression": "tiff_lzw"}, "bmp": {}, "gif": {}, "ppm": {},
}  # fmt: skip


def picture(draw: random.Random, mode: str = "RGB", size: tuple[int, int] | None = None) -> Image.Image:
    width, height = size or (draw.randint(1, 80), draw.randint(1, 80))
    pixels = np.random.default_rng(draw.randrange(2**32)).integers(0, 256, (max(1, height // 8), max(1, width // 8), 3), np.uint8)
    return Image.fromarray(pixels).resize((width, height)).convert(mode)


def encoded(image: Image.Image, suffix: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, Image.registered_extensions()[f".{suffix}"], **{**FORMATS[suffix], **options})
    return file.getvalue()


def animation(draw: random.Random, suffix: str) -> bytes:
    frames = [picture(draw, size=(20, 12)) for _ in range(4)]
    return encoded(frames[0], suffix, save_all=True, append_images=frames[1:])


def png(width: int, height: int, data: bytes, extra: bytes = b"") -> bytes:
    """A grey 8-bit PNG with these (compressed) pixels, whatever its header says."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + extra + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def text_bomb() -> bytes:
    """A compressed comment of 200 MB."""
    content = b"Comment\0\0" + zlib.compress(bytes(200_000_000), 9)
    return struct.pack(">I", len(content)) + b"zTXt" + content + struct.pack(">I", zlib.crc32(b"zTXt" + content))


def special(draw: random.Random) -> dict[str, tuple[bytes, bool]]:
    """Files by name, and whether each must be encoded (or else reported)."""
    ordinary = encoded(picture(draw), "png")
    rows = zlib.compress(bytes(12_001 * 12_000), 9)
    return {
        "1x1.png": (encoded(picture(draw, size=(1, 1)), "png"), True),
        "20000x1.png": (encoded(picture(draw, size=(20_000, 1)), "png"), True),
        "1x20000.jpg": (encoded(picture(draw, size=(1, 20_000)), "jpg"), True),
        "animated.gif": (animation(draw, "gif"), True),
        "animated.webp": (animation(draw, "webp"), True),
        "animated.png": (animation(draw, "png"), True),
        "pages.tif": (animation(draw, "tif"), True),
        "a png.jpg": (ordinary, True),
        "a jpeg.png": (encoded(picture(draw), "jpg"), True),
        "palette.gif": (encoded(picture(draw, "P"), "gif"), True),
        "cmyk.jpg": (encoded(picture(draw, "CMYK"), "jpg"), True),
        "transparent.webp": (encoded(picture(draw, "RGBA"), "webp"), True),
        "bilevel.png": (encoded(picture(draw, "1"), "png"), True),
        "float.tif": (encoded(picture(draw, "F"), "tif", compression=None), False),
        "pixel bomb.png": (png(12_000, 12_000, rows), False),
        "pixel bomb in limits of Pillow.png": (png(9_000, 9_000, rows), False),
        "header bomb.png": (png(2**31 - 1, 2**31 - 1, zlib.compress(b"")), False),
        "text bomb.png": (png(8, 8, zlib.compress(bytes(72)), text_bomb()), False),
        "empty.png": (b"", False),
        "text.jpg": (b"<html>not found</html>", False),
        "script.png": (b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>", False),
        "postscript.tif": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(/etc/passwd) run\n", False),
        "truncated.png": (ordinary[: len(ordinary) // 2], False),
        "truncated.jpg": (encoded(picture(draw, size=(70, 70)), "jpg")[:400], False),
        "truncated.gif": (animation(draw, "gif")[:60], False),
        "truncated.tif": (encoded(picture(draw), "tif")[:30], False),
    }


@dataclass
class Report:
    """Figures of one encoding: files given, encoded, reported by reason; seconds; peak memory of its process in MiB; what went wrong."""

    files: int
    encoded: int
    reported: Counter[str]
    seconds: float
    peak: float
    wrong: list[str]


def run(place: Path, files: int, seed: int) -> Report:
    """Write the files below `place`, encode them by the command in a process of its own, and check what it left."""
    draw = random.Random(seed)
    folder, out = place / "in", place / "out"
    folder.mkdir()
    chosen = special(draw)
    for name, (content, _) in chosen.items():
        (folder / name).write_bytes(content)
    modes = {"png": ("RGB", "RGBA", "L", "P", "1"), "jpg": ("RGB", "L", "CMYK"), "webp": ("RGB", "RGBA"), "tif": ("RGB", "CMYK", "L")}
    for i in range(files):
        suffix = draw.choice(list(FORMATS))
        mode = draw.choice(modes.get(suffix, ("RGB",)))
        whole = (
            animation(draw, suffix) if suffix in ("gif", "webp", "tif") and draw.random() < 0.2 else encoded(picture(draw, mode), suffix)
        )
        (folder / f"mutated-{i:04}.{suffix}").write_bytes(mutate_bytes(whole, draw))
    torch.manual_seed(0)
    tokenizer = Tokenizer(small_config("vqvae", place, "x").tokenizer_config()).eval()
    tokenizer.save_pretrained(place / "tokenizer")

    def encode() -> None:
        torch.set_num_threads(1)
        code = vqlab(["encode", str(folder), "--tokenizer", str(place / "tokenizer"), "--out", str(out)])
        raise SystemExit(code)

    start = time.perf_counter()
    pid = start_child(encode, place / "log")
    code = exit_code(pid)
    seconds, peak = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    wrong = []
    log = (place / "log").read_text()
    if code not in (0, SOME_SKIPPED) or not (out / "index.json").is_file():
        wrong.append(f"exit code {code}: {log[-500:]}")
        return Report(files + len(chosen), 0, Counter(), seconds, peak, wrong)
    tokens = TokenDataset(out, verify=True)
    names = {tokens.name(i) for i in range(len(tokens))}
    skipped = {item["name"]: item["reason"] for item in json.loads((out / "skipped.json").read_text())}
    everything = {path.name for path in folder.iterdir()}
    if names | skipped.keys() != everything or names & skipped.keys():
        wrong.append("not every file is either encoded or reported")
    wrong += [f"{name}: no line of reason: {reason!r}" for name, reason in skipped.items() if not reason.strip() or "\n" in reason]
    for name, (_, readable) in chosen.items():
        if (name in names) != readable:
            wrong.append(f"{name} was {'encoded' if name in names else 'reported: ' + skipped[name]}")
    for i in range(len(tokens)):
        if tokens[i].numel() == 0:
            wrong.append(f"{tokens.name(i)} has no ids")
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        if vqlab(["decode", str(out), "--tokenizer", str(place / "tokenizer"), "--out", str(place / "back")]) != 0:
            wrong.append("the tokens cannot be decoded")
    return Report(len(everything), len(names), Counter(reason.split(":")[0][:60] for reason in skipped.values()), seconds, peak, wrong)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1000, help="mutated files")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        report = run(Path(place), options.files, options.seed)
    print(
        f"{report.files} files: {report.encoded} encoded, {report.reported.total()} reported; {report.seconds:.0f} s, "
        f"peak memory {report.peak:.0f} MiB"
    )
    for reason, count in report.reported.most_common(8):
        print(f"  {count} x {reason}")
    for line in report.wrong:
        print(f"  WRONG: {line}")
    return int(bool(report.wrong))


if __name__ == "__main__":
    sys.exit(main())

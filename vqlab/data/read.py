"""One image file of any usual kind to uint8 RGB."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps
from torch import Tensor

from vqlab.errors import VqlabError

#: Pillow's names of the formats that are read; others are refused, whatever a file is called.
FORMATS = ("PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF", "PPM")
#: Pixels of the largest image that is opened: Pillow's own limit, above which a small file may fill the memory.
MAX_PIXELS = 89_478_485
_BACKGROUND = (255, 255, 255, 255)


class ImageFileError(VqlabError):
    """A file that is no image, or that is damaged, too large or of a kind that is not read; the message names it."""


def read_image(path: str | Path, *, max_pixels: int = MAX_PIXELS) -> Tensor:
    """The image in a file as the viewer shows it: uint8 (3, h, w), 0..255.

    PNG, JPEG, WebP, TIFF, BMP, GIF, PPM. Turned upright (EXIF); grey, palette, CMYK and 16-bit images become 8-bit RGB, transparent ones
    lie on white, of several frames the first counts. Raises ImageFileError naming the file and what is wrong with it: missing, no image,
    damaged, more than max_pixels pixels, or values without a known range (floating point).
    """
    return to_tensor(open_upright(path, str(path), max_pixels=max_pixels))


def read_image_bytes(content: bytes, name: str, *, max_pixels: int = MAX_PIXELS) -> Tensor:
    """The same from the bytes of a file; `name` stands for the path in messages."""
    return to_tensor(open_upright(io.BytesIO(content), name, max_pixels=max_pixels))


def image_file_size(file: str | Path | io.BytesIO, name: str, *, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """Height and width of the upright image, from the file's header alone. Raises ImageFileError like `read_image`.

    A PNG file is decoded all the same where no orientation stands before its pixels: one may stand behind them.
    """
    try:
        with Image.open(file, formats=FORMATS) as image:
            _check_pixels(image, name, max_pixels)
            return (image.width, image.height) if _swaps_sides(image) else (image.height, image.width)
    except ImageFileError:
        raise
    except Exception as error:
        raise ImageFileError(_reason(name, error)) from error


def open_upright(file: str | Path | io.BytesIO, name: str, *, shorter_side: int | None = None, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The decoded image, 8-bit RGB, upright. Raises ImageFileError like `read_image`.

    shorter_side: larger images are reduced to this shorter side, antialiased (JPEG: while decoding, which is several times faster).
    """
    try:
        with Image.open(file, formats=FORMATS) as image:
            _check_pixels(image, name, max_pixels)
            if shorter_side is None or min(image.size) <= shorter_side:
                return _to_rgb(ImageOps.exif_transpose(image), name)
            wanted = reduced_size(image.width, image.height, shorter_side)
            image.draft(None, wanted)  # does nothing for formats other than JPEG, and never goes below `wanted`
            upright = _to_rgb(ImageOps.exif_transpose(image), name)
            return upright.resize(wanted[::-1] if _swaps_sides(image) else wanted, Image.Resampling.BICUBIC)
    except ImageFileError:
        raise
    except Exception as error:  # a damaged file fails in many ways inside the decoders
        raise ImageFileError(_reason(name, error)) from error


def reduced_size(height: int, width: int, shorter_side: int) -> tuple[int, int]:
    """Both sides by the same factor so that the shorter one is at most `shorter_side`."""
    share = min(1.0, shorter_side / min(height, width))
    return round(height * share), round(width * share)


def to_tensor(image: Image.Image) -> Tensor:
    """An RGB image as uint8 (3, h, w), contiguous."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def _swaps_sides(image: Image.Image) -> bool:
    """Whether the EXIF orientation turns the image by a quarter."""
    return image.getexif().get(ExifTags.Base.Orientation, 1) in (5, 6, 7, 8)


def _check_pixels(image: Image.Image, name: str, max_pixels: int) -> None:
    if image.width * image.height > max_pixels:
        raise ImageFileError(
            f"{name}: {image.width}x{image.height} pixels are more than the {max_pixels:,} that are opened; it may be a decompression bomb"
        )


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    if image.mode.startswith("I;16") or image.mode == "I":
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise ImageFileError(f"{name}: 32-bit integer pixels from {values.min()} to {values.max()} have no known range")
        # 65535 = 255 * 257: the nearest of 256 levels.
        return Image.fromarray(((values.astype(np.uint32) + 128) // 257).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise ImageFileError(f"{name}: floating-point pixels have no known range; convert the file to 8 or 16 bits")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, _BACKGROUND), image).convert("RGB")
    return image.convert("RGB")


def _reason(name: str, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{name}: there is no such file"
    if isinstance(error, Image.DecompressionBombError):
        return f"{name}: {error}"
    if isinstance(error, Image.UnidentifiedImageError):
        return f"{name}: not an image that is read (PNG, JPEG, WebP, TIFF, BMP, GIF, PPM), or damaged"
    return f"{name}: cannot be read: {(str(error).splitlines() or [''])[0] or type(error).__name__}"

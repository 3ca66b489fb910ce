"""Reading one image file: every kind of pixel, upright, and what is refused."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vqlab.data import ImageFileError, read_image
from vqlab.data.read import image_file_size, open_upright, read_image_bytes, to_tensor


def picture(height: int = 12, width: int = 20) -> np.ndarray:
    """Smooth colours, so that lossy formats come close."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x * 255 // (width - 1), y * 255 // (height - 1), 128 + 0 * x], -1).astype(np.uint8)


def as_tensor(pixels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy())


@pytest.mark.parametrize("suffix", ["png", "tiff", "bmp", "ppm", "webp"])
def test_lossless_formats_give_the_pixels(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(picture()).save(path, **({"lossless": True} if suffix == "webp" else {}))
    image = read_image(path)
    assert image.dtype == torch.uint8
    assert image.is_contiguous()
    assert torch.equal(image, as_tensor(picture()))
    assert image_file_size(path, "a") == (12, 20)


def test_jpeg_is_close(tmp_path: Path) -> None:
    Image.fromarray(picture()).save(tmp_path / "a.jpg", quality=95)
    difference = read_image(tmp_path / "a.jpg").int() - as_tensor(picture()).int()
    assert difference.abs().max() <= 16


@pytest.mark.parametrize("mode", ["L", "1", "P", "LA", "YCbCr"])
def test_other_pixels_become_rgb(tmp_path: Path, mode: str) -> None:
    source = Image.fromarray(picture()).convert(mode)
    path = tmp_path / ("a.tiff" if mode == "YCbCr" else "a.png")
    source.save(path)
    expected = np.array(source.convert("RGBA").convert("RGB") if mode == "LA" else source.convert("RGB"))
    assert torch.equal(read_image(path), as_tensor(expected))


@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_sixteen_bit_grey_goes_to_the_nearest_of_256_levels(tmp_path: Path, suffix: str) -> None:
    values = np.array([[0, 128, 129, 257, 32768, 65534, 65535]], np.uint16)
    Image.fromarray(values).save(tmp_path / f"a.{suffix}")
    expected = np.round(values / 257).astype(np.uint8)
    assert torch.equal(read_image(tmp_path / f"a.{suffix}"), torch.from_numpy(expected)[None].expand(3, -1, -1))


def test_sixteen_bit_colour_png(tmp_path: Path) -> None:
    pixels = picture().astype(np.uint16) * 257
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 16, 2, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    assert torch.equal(read_image_bytes(content, "a.png"), as_tensor(picture()))


def test_transparent_images_lie_on_white(tmp_path: Path) -> None:
    pixels = np.dstack([picture(), np.zeros((12, 20), np.uint8)])
    pixels[:, 10:, 3] = 255
    Image.fromarray(pixels).save(tmp_path / "a.png")
    image = read_image(tmp_path / "a.png")
    assert (image[:, :, :10] == 255).all()
    assert torch.equal(image[:, :, 10:], as_tensor(picture())[:, :, 10:])


def test_a_transparent_palette_entry_lies_on_white(tmp_path: Path) -> None:
    image = Image.new("P", (4, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putdata([0, 1, 0, 1])
    image.save(tmp_path / "a.png", transparency=0)
    assert read_image(tmp_path / "a.png")[:, 0].T.tolist() == [[255, 255, 255], [0, 0, 255]] * 2


def test_cmyk(tmp_path: Path) -> None:
    source = Image.fromarray(picture()).convert("CMYK")
    source.save(tmp_path / "a.tiff")
    assert torch.equal(read_image(tmp_path / "a.tiff"), as_tensor(picture()))
    source.save(tmp_path / "a.jpg", quality=95)
    assert (read_image(tmp_path / "a.jpg").int() - as_tensor(picture()).int()).abs().max() <= 24


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("shorter_side", [None, 6])
def test_exif_rotation_is_undone(tmp_path: Path, orientation: int, shorter_side: int | None) -> None:
    undo = [None, Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.ROTATE_180, Image.Transpose.FLIP_TOP_BOTTOM, Image.Transpose.TRANSPOSE]
    undo += [Image.Transpose.ROTATE_90, Image.Transpose.TRANSVERSE, Image.Transpose.ROTATE_270]
    upright = Image.fromarray(picture())
    stored = upright.transpose(undo[orientation - 1]) if orientation > 1 else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "a.png"
    stored.save(path, exif=exif)
    assert image_file_size(path, "a") == (12, 20)
    image = to_tensor(open_upright(path, "a", shorter_side=shorter_side))
    if shorter_side is None:
        assert torch.equal(image, as_tensor(picture()))
        assert torch.equal(read_image(path), image)
    else:
        expected = to_tensor(upright.resize((10, 6), Image.Resampling.BICUBIC))
        assert image.shape == (3, 6, 10)
        assert (image.int() - expected.int()).abs().max() <= 1


def test_large_images_are_reduced_and_small_ones_kept(tmp_path: Path) -> None:
    Image.fromarray(picture(600, 800)).save(tmp_path / "large.jpg", quality=95)
    reduced = open_upright(tmp_path / "large.jpg", "large", shorter_side=90)
    assert reduced.size == (120, 90)
    expected = np.asarray(Image.fromarray(picture(600, 800)).resize((120, 90), Image.Resampling.BICUBIC)).astype(int)
    assert np.abs(np.asarray(reduced).astype(int) - expected).max() <= 8
    Image.fromarray(picture()).save(tmp_path / "small.png")
    assert open_upright(tmp_path / "small.png", "small", shorter_side=90).size == (20, 12)


def test_one_pixel(tmp_path: Path) -> None:
    Image.new("L", (1, 1), 7).save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png").flatten().tolist() == [7, 7, 7]


def test_of_an_animation_the_first_frame_counts(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (5, 4), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert read_image(tmp_path / "a.gif")[:, 0, 0].tolist() == [255, 0, 0]


def test_the_content_decides_the_format_not_the_name(tmp_path: Path) -> None:
    Image.fromarray(picture()).save(tmp_path / "a.jpg", format="PNG")
    assert torch.equal(read_image(tmp_path / "a.jpg"), as_tensor(picture()))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an image"),
        (b"hello", "not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "not an image"),
    ],
)
def test_what_is_no_image_is_refused_by_name(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "broken.png"
    path.write_bytes(content)
    for read in (read_image, lambda file: image_file_size(file, str(file))):
        with pytest.raises(ImageFileError, match=rf"broken\.png.*{message}"):
            read(path)


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "tiff"])
def test_truncated_files_are_refused_by_name(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"broken.{suffix}"
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ImageFileError, match=r"broken\."):
        read_image(path)


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(ImageFileError, match="no such file"):
        read_image(tmp_path / "a.png")
    with pytest.raises(ImageFileError):
        read_image(tmp_path)


def test_too_many_pixels_are_refused_before_they_are_decoded(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("1", (12_000, 12_000)).save(file, "PNG")  # 20 kB that would become 400 MB
    (tmp_path / "bomb.png").write_bytes(file.getvalue())
    for read in (read_image, lambda path: image_file_size(path, str(path))):
        with (
            pytest.warns(Image.DecompressionBombWarning),
            pytest.raises(ImageFileError, match=r"bomb\.png.*12000x12000 pixels"),
        ):
            read(tmp_path / "bomb.png")
    Image.new("RGB", (20, 10)).save(tmp_path / "a.png")
    with pytest.raises(ImageFileError, match="199"):
        read_image(tmp_path / "a.png", max_pixels=199)
    assert read_image(tmp_path / "a.png", max_pixels=200).shape == (3, 10, 20)


@pytest.mark.parametrize(("values", "message"), [(np.ones((2, 2), np.float32), "floating"), (np.full((2, 2), 70000, np.int32), "32-bit")])
def test_values_without_a_range_are_refused(tmp_path: Path, values: np.ndarray, message: str) -> None:
    Image.fromarray(values).save(tmp_path / "a.tiff")
    with pytest.raises(ImageFileError, match=message):
        read_image(tmp_path / "a.tiff")

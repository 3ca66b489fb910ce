"""Which images a word names, under which names and labels."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from vqlab import VqlabError
from vqlab.data import ImageFileError
from vqlab.tokens import open_images


def test_a_flat_folder_has_no_labels(save: Callable[..., np.ndarray], tmp_path: Path) -> None:
    pixels = save(tmp_path / "b.png", 5, 7)
    save(tmp_path / "a" / "a.png", 5, 7)
    images = open_images(str(tmp_path))
    assert images.names == ["a/a.png", "b.png"]
    assert images.labels is None
    assert images.classes is None
    assert images.read(1).permute(1, 2, 0).numpy().tolist() == pixels.tolist()


def test_a_list_keeps_its_order_and_names_never_lead_upwards(save: Callable[..., np.ndarray], tmp_path: Path) -> None:
    for name in ("x/b.png", "x/a.png", "c.png"):
        save(tmp_path / name, 4, 4)
    (tmp_path / "x" / "list.txt").write_text(f"b.png\n# a note\na.png\n../c.png\n{tmp_path}/x/../c.png\n")
    with pytest.raises(VqlabError, match="twice"):
        open_images(str(tmp_path / "x" / "list.txt"))
    (tmp_path / "x" / "list.txt").write_text(f"b.png\na.png\n../c.png\n{tmp_path}/x/../../{tmp_path.name}/x/a.png")
    names = open_images(str(tmp_path / "x" / "list.txt")).names
    assert names[:3] == ["b.png", "a.png", "c.png"]
    assert not any(part in ("", "..") for name in names for part in name.split("/"))


def test_resized_and_cropped(save: Callable[..., np.ndarray], tmp_path: Path) -> None:
    for name, size in {"large.png": (90, 40), "small.png": (5, 9), "same.png": (16, 16)}.items():
        pixels = save(tmp_path / name, *size)
    images = open_images(str(tmp_path), image_size=16)
    assert [tuple(images.read(i).shape) for i in range(3)] == [(3, 16, 16)] * 3
    assert images.read(1).permute(1, 2, 0).numpy().tolist() == pixels.tolist()
    assert images.digest == open_images(str(tmp_path)).digest


def test_the_digest_changes_with_names_and_sizes(save: Callable[..., np.ndarray], tmp_path: Path) -> None:
    save(tmp_path / "a.png", 4, 4)
    first = open_images(str(tmp_path)).digest
    assert open_images(str(tmp_path)).digest == first
    (tmp_path / "a.png").rename(tmp_path / "b.png")
    second = open_images(str(tmp_path)).digest
    save(tmp_path / "b.png", 40, 40)
    assert len({first, second, open_images(str(tmp_path)).digest}) == 3


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(ImageFileError, match="regular"):
        open_images(str(tmp_path)).read(0)


def test_names_that_are_no_unicode(save: Callable[..., np.ndarray], tmp_path: Path) -> None:
    save(tmp_path / "a.png", 4, 4)
    try:
        os.rename(tmp_path / "a.png", os.fsencode(tmp_path) + b"/\xff.png")
    except OSError:
        pytest.skip("this file system takes Unicode names only")
    images = open_images(str(tmp_path))
    assert os.fsencode(images.names[0]) == b"\xff.png"
    assert images.read(0).shape == (3, 4, 4)


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [("sample:val", None, "train and test"), ("sample", 32, "image_size"), ("nowhere", None, "nowhere"), ("nowhere", 0, "image_size")],
)
def test_what_is_refused(name: str, size: int | None, message: str) -> None:
    with pytest.raises(VqlabError, match=message):
        open_images(name, image_size=size)

"""The sample that comes with the package."""

from importlib.resources import files

import pytest
import torch

from vqlab.data import load_images
from vqlab.data.cifar10 import CLASSES
from vqlab.data.cifar10.cache import cache_path
from vqlab.errors import VqlabError


def test_shape_type_and_classes() -> None:
    data = load_images("sample", root="/does/not/exist")
    assert data.name == "sample"
    assert data.classes == CLASSES
    for split, count in ((data.train, 800), (data.test, 200)):
        assert split.images.shape == (count, 3, 32, 32)
        assert split.images.dtype == torch.uint8
        assert split.images.is_contiguous()
        assert split.labels.bincount().tolist() == [count // 10] * 10


def test_images_are_all_different_natural_images() -> None:
    data = load_images("sample")
    images = torch.cat([data.train.images, data.test.images])
    assert len({image.numpy().tobytes() for image in images}) == 1000
    pixels = images.float() / 255
    # The channel means of the full training split are .4914 .4822 .4465.
    assert pixels.mean((0, 2, 3)).tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=0.02)
    # Neighbouring pixels of a natural image are alike: an image cut at the wrong place would not be.
    down = (pixels[:, :, 1:] - pixels[:, :, :-1]).abs().mean()
    across = (pixels[..., 1:] - pixels[..., :-1]).abs().mean()
    assert max(down, across) < 0.08


def test_size_and_attribution() -> None:
    folder = files("vqlab.data") / "cifar10_sample"
    entries = [entry for entry in folder.iterdir() if entry.is_file()]
    assert sum(len(entry.read_bytes()) for entry in entries) < 3_000_000
    assert "Krizhevsky" in (folder / "ATTRIBUTION.md").read_text()


def test_is_a_subset_of_cifar10(pytestconfig: pytest.Config) -> None:
    root = pytestconfig.rootpath / "data"
    if not cache_path(root).exists():
        pytest.skip("needs the full CIFAR-10 in data/")
    full, sample = load_images("cifar10", root, download=False), load_images("sample")
    for part, whole in ((sample.train, full.train), (sample.test, full.test)):
        known = {image.tobytes(): label for image, label in zip(whole.images.numpy(), whole.labels.tolist(), strict=True)}
        assert [known.get(image.tobytes()) for image in part.images.numpy()] == part.labels.tolist()


def test_unknown_name_lists_the_choices() -> None:
    with pytest.raises(VqlabError, match=r"'cifar100'.*cifar10, sample"):
        load_images("cifar100")

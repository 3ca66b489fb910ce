"""Choices that depend on the machine: precision, memory format, allocator, threads."""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass

import torch
from torch import nn

from vqlab.config import DEVICES, PRECISIONS, check_choice
from vqlab.errors import VqlabError


@dataclass(frozen=True)
class World:
    """size: processes of this training.  rank: number of this one.  local_size: processes on this machine."""

    size: int = 1
    rank: int = 0
    local_size: int = 1


def world() -> World:
    """What the launcher (torchrun, or a cluster's through it) has set; one process without a launcher."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    return World(size, int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", size)))


@dataclass(frozen=True)
class Runtime:
    """accelerator: Lightning's name of the device.  bf16: autocast to bfloat16.  channels_last: memory format of convolutions."""

    accelerator: str
    bf16: bool
    channels_last: bool

    @property
    def lightning_precision(self) -> str:
        return "bf16-mixed" if self.bf16 else "32-true"

    @property
    def memory_format(self) -> torch.memory_format:
        return torch.channels_last if self.channels_last else torch.contiguous_format


def cpu_is_fast_at_bf16() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware (AVX512-bf16 or AMX)."""
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def choose_runtime(device: str, precision: str) -> Runtime:
    """Resolve "auto": bf16 and channels_last go together where the device is fast at bf16, else float32.

    Raises VqlabError for an unknown device or precision, and for a device that is not there.
    """
    check_choice("device", device, DEVICES)
    check_choice("precision", precision, PRECISIONS)
    cuda = torch.cuda.is_available()
    if device == "auto":
        device = "gpu" if cuda else "cpu"
    if device in ("gpu", "cuda") and not cuda:
        raise VqlabError(f"device is {device}, but no CUDA device can be seen")
    fast = (cuda and torch.cuda.is_bf16_supported()) if device in ("gpu", "cuda") else device == "cpu" and cpu_is_fast_at_bf16()
    bf16 = fast if precision == "auto" else precision == "bf16"
    return Runtime(device, bf16, bf16)


def tune_process(threads: int = 0) -> None:
    """Settings of the training process; call once at its start.

    Denormals count as zero: softmax tails are full of them and they slow CPUs several times. The C allocator keeps freed memory:
    activations are freed and asked for again at every step, and giving pages back to the system in between costs a fifth of the time.
    """
    if threads:
        torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    if sys.platform == "linux" and not os.environ.get("MALLOC_MMAP_THRESHOLD_"):
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc; absent in other C libraries
        if mallopt is not None:
            m_trim_threshold, m_mmap_threshold = -1, -3
            mallopt(m_mmap_threshold, 1 << 30)
            mallopt(m_trim_threshold, 2**31 - 1)


def compile_networks(*networks: nn.Module, backend: str = "inductor") -> None:
    """Compile modules in place by torch.compile: their weights, names and type stay the same."""
    for network in networks:
        network.compile(backend=backend)

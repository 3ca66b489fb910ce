"""From plain settings to quantizers: the only place that knows every kind by name."""

from __future__ import annotations

import inspect
import operator
import typing
from typing import Any

from vqlab.errors import VqlabError
from vqlab.quantizers.base import Codebook
from vqlab.quantizers.ddcl import DDCLCodebook
from vqlab.quantizers.none import NoQuantizer
from vqlab.quantizers.peers import PEERS
from vqlab.quantizers.pyramid import PyramidQuantizer
from vqlab.quantizers.stack import STACKS, Quantizer
from vqlab.quantizers.vq import VQCodebook
from vqlab.registry import Registry
from vqlab.typed import check_types

CODEBOOKS: Registry[type[Codebook]] = Registry("quantizer", {cls.kind: cls for cls in (DDCLCodebook, VQCodebook, *PEERS)})
#: What `--quantizer` takes: every kind of codebook, and none at all.
QUANTIZER_NAMES = (*CODEBOOKS, "none")
#: Those of them that come from other papers to compare with.
PEER_NAMES = tuple(cls.kind for cls in PEERS)
#: What `--topology` takes.
TOPOLOGIES = (*STACKS, "pyramid")


def build_codebook(settings: Any, dim: int) -> Codebook:
    """One level from {"kind", "codebook_size", ...}; VqlabError names a missing or unknown key or a value that is refused."""
    if not isinstance(settings, dict):
        raise VqlabError(f"a level of the quantizer must be a mapping of settings, got {settings!r}")
    settings = dict(settings)
    if "kind" not in settings:
        raise VqlabError(f"a level of the quantizer needs a kind: choose from {', '.join(CODEBOOKS)}")
    kind = settings.pop("kind")
    cls = CODEBOOKS[str(kind)]
    known = set(inspect.signature(cls).parameters) - {"dim"}
    unknown = sorted(set(settings) - known)
    if unknown:
        raise VqlabError(f"unknown setting {unknown[0]!r} of quantizer {kind!r}: known are {', '.join(sorted(known))}")
    if "codebook_size" not in settings:
        raise VqlabError(f"a level of quantizer {kind!r} needs a codebook_size")
    try:
        check_types(settings, typing.get_type_hints(cls.__init__))
        return cls(dim, **settings)
    except (ValueError, TypeError, RuntimeError) as error:  # sizes beyond what torch can count end in errors of many lines
        raise VqlabError(f"quantizer {kind!r}: {(str(error).splitlines() or [type(error).__name__])[0]}") from error


def build_quantizer(dim: int, settings: dict[str, Any]) -> Quantizer:
    """A stack from `Quantizer.settings()`: {"topology", "normalize", "codebook_dim", "levels": [...]}; no levels give `NoQuantizer`.

    VqlabError names a missing or unknown key, or a value that is refused.
    """
    settings = dict(settings)
    unknown = sorted(set(settings) - {"topology", "normalize", "codebook_dim", "levels"})
    if unknown:
        raise VqlabError(f"unknown setting {unknown[0]!r} of the quantizer stack")
    try:
        levels, codebook_dim = list(settings["levels"]), operator.index(settings["codebook_dim"])
    except (KeyError, TypeError, ValueError) as error:
        raise VqlabError(f"the quantizer's settings lack a usable 'levels' or 'codebook_dim': {error}") from error
    normalize = settings.get("normalize", True)
    if not isinstance(normalize, bool):
        raise VqlabError(f"the quantizer's 'normalize' must be true or false, got {normalize!r}")
    if not levels:
        if codebook_dim != dim:
            raise VqlabError(f"without levels nothing is projected: codebook_dim must be the latents' {dim}, got {codebook_dim}")
        return NoQuantizer(dim, normalize=normalize)
    try:
        books = [build_codebook(level, codebook_dim) for level in levels]
        topology = str(settings.get("topology", "residual"))
        if topology == "pyramid":
            return PyramidQuantizer(dim, books, normalize=normalize)
        return Quantizer(dim, books, topology=topology, normalize=normalize)
    except ValueError as error:
        raise VqlabError(str(error)) from error

"""Quantizers: codebooks (one level each) and the stack that puts them on maps and sequences."""

from vqlab.quantizers.base import Codebook, LevelOutput, NonFiniteError, QuantizerOutput
from vqlab.quantizers.build import CODEBOOKS, PEER_NAMES, QUANTIZER_NAMES, TOPOLOGIES, build_codebook, build_quantizer
from vqlab.quantizers.ddcl import DDCLCodebook
from vqlab.quantizers.none import NoQuantizer
from vqlab.quantizers.pyramid import PyramidQuantizer
from vqlab.quantizers.stack import Quantizer
from vqlab.quantizers.vq import VQCodebook

__all__ = [
    "CODEBOOKS",
    "PEER_NAMES",
    "QUANTIZER_NAMES",
    "TOPOLOGIES",
    "Codebook",
    "DDCLCodebook",
    "LevelOutput",
    "NoQuantizer",
    "NonFiniteError",
    "PyramidQuantizer",
    "Quantizer",
    "QuantizerOutput",
    "VQCodebook",
    "build_codebook",
    "build_quantizer",
]

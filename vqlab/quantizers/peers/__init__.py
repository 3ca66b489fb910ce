"""Quantizers of other papers behind the same interface, to compare with: same encoder, decoder, optimizer and measures."""

from vqlab.quantizers.peers.fsq import FSQCodebook
from vqlab.quantizers.peers.gumbel import GumbelCodebook
from vqlab.quantizers.peers.lfq import BSQCodebook, LFQCodebook
from vqlab.quantizers.peers.rotation import RotationCodebook
from vqlab.quantizers.peers.simvq import SimVQCodebook
from vqlab.quantizers.peers.softvq import SoftVQCodebook

#: Every peer; `vqlab.quantizers.CODEBOOKS` has them beside DDCL and the VQ-VAE.
PEERS = (BSQCodebook, FSQCodebook, GumbelCodebook, LFQCodebook, RotationCodebook, SimVQCodebook, SoftVQCodebook)

__all__ = ["PEERS", "BSQCodebook", "FSQCodebook", "GumbelCodebook", "LFQCodebook", "RotationCodebook", "SimVQCodebook", "SoftVQCodebook"]

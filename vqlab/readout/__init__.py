"""DDCL as a pooling layer for transformer encoders, and the pooling layers it is compared with."""

from vqlab.readout.ddcl import DDCLReadout, ReadoutOutput, ReadoutStack
from vqlab.readout.pooling import POOLINGS, AttentionPool, ClsPool, MaxPool, MeanPool, NetVLADPool, PerceiverPool, SlotAttentionPool

__all__ = [
    "POOLINGS",
    "AttentionPool",
    "ClsPool",
    "DDCLReadout",
    "MaxPool",
    "MeanPool",
    "NetVLADPool",
    "PerceiverPool",
    "ReadoutOutput",
    "ReadoutStack",
    "SlotAttentionPool",
]

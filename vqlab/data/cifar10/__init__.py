"""CIFAR-10 from several sources.

A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", University of Toronto, 2009.
"""

from vqlab.data.cifar10.arrays import CLASSES
from vqlab.data.cifar10.load import load_cifar10

__all__ = ["CLASSES", "load_cifar10"]

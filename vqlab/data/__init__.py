"""Images in memory, and batches of them."""

from vqlab.data.arrays import ImageData, ImageSplit
from vqlab.data.augment import random_crop_flip
from vqlab.data.load import DATA_SETS, load_images
from vqlab.data.loader import BatchLoader, ImageBatch

__all__ = [
    "DATA_SETS",
    "BatchLoader",
    "ImageBatch",
    "ImageData",
    "ImageSplit",
    "load_images",
    "random_crop_flip",
]

"""Images: files, data sets, and batches of them."""

from vqlab.data.arrays import ImageData, ImageSplit
from vqlab.data.augment import random_crop_flip
from vqlab.data.find import find_images
from vqlab.data.load import DATA_SETS, load_images
from vqlab.data.loader import BatchLoader, ImageBatch
from vqlab.data.read import ImageFileError, read_image

__all__ = [
    "DATA_SETS",
    "BatchLoader",
    "ImageBatch",
    "ImageData",
    "ImageFileError",
    "ImageSplit",
    "find_images",
    "load_images",
    "random_crop_flip",
    "read_image",
]

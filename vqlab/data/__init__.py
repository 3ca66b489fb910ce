"""Images: files, data sets, and batches of them."""

from vqlab.data.arrays import ImageData, ImageSplit, Split, all_images
from vqlab.data.augment import random_crop_flip
from vqlab.data.files import FilesConfig
from vqlab.data.find import find_images
from vqlab.data.load import DATA_HELP, DATA_SETS, ImageSize, as_size, check_data, load_images
from vqlab.data.loader import BatchLoader, ImageBatch
from vqlab.data.read import ImageFileError, read_image

__all__ = [
    "DATA_HELP",
    "DATA_SETS",
    "BatchLoader",
    "FilesConfig",
    "ImageBatch",
    "ImageData",
    "ImageFileError",
    "ImageSize",
    "ImageSplit",
    "Split",
    "all_images",
    "as_size",
    "check_data",
    "find_images",
    "load_images",
    "random_crop_flip",
    "read_image",
]

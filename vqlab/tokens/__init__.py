"""Token files: images as ids on disk, written in shards, read back lazily."""

from vqlab.tokens.dataset import LabelledTokens, TokenDataset
from vqlab.tokens.decode import DecodeReport, decode_tokens
from vqlab.tokens.encode import EncodeOptions, EncodeReport, encode_images
from vqlab.tokens.images import NamedImages, open_images
from vqlab.tokens.index import ShardEntry, TokenIndex
from vqlab.tokens.shard import TokenShard

__all__ = [
    "DecodeReport",
    "EncodeOptions",
    "EncodeReport",
    "LabelledTokens",
    "NamedImages",
    "ShardEntry",
    "TokenDataset",
    "TokenIndex",
    "TokenShard",
    "decode_tokens",
    "encode_images",
    "open_images",
]

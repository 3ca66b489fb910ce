"""vqlab: train, compare and use image tokenizers."""

__version__ = "0.1.0"

from vqlab.errors import VqlabError
from vqlab.tokenizer import Tokenizer, TokenizerOutput

__all__ = ["Tokenizer", "TokenizerOutput", "VqlabError", "__version__"]

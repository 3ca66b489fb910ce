"""Train an image tokenizer: python train.py --quantizer ddcl|vqvae|none [--config FILE] [--any.key value]."""

import sys

from vqlab.cli.main import train_main

if __name__ == "__main__":
    sys.exit(train_main())

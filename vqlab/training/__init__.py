"""Training: configuration in, run folder out."""

from vqlab.config import TrainConfig
from vqlab.training.module import TokenizerModule
from vqlab.training.run import load_run_config, train

__all__ = ["TokenizerModule", "TrainConfig", "load_run_config", "train"]

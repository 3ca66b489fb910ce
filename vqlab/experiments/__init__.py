"""The paper's experiments beyond tokenizers, each run by `vqlab reproduce NAME`."""

from vqlab.experiments.report import Claim, Report, Settings
from vqlab.experiments.table import EXPERIMENTS, Experiment, reproduce

__all__ = ["EXPERIMENTS", "Claim", "Experiment", "Report", "Settings", "reproduce"]

"""Autoregressive models over the ids of a tokenizer: train one, measure it in bits, draw images from it."""

from vqlab.prior.config import PriorConfig
from vqlab.prior.model import Prior
from vqlab.prior.sample import sample_ids, sample_images
from vqlab.prior.train import resume_prior, train_prior

__all__ = ["Prior", "PriorConfig", "resume_prior", "sample_ids", "sample_images", "train_prior"]

"""DDCL as a clustering: finds blobs, keeps its promises at every step, parts what has merged."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vqlab.experiments.clustering import fit_ddcl, hungarian_accuracy, predict

pytest.importorskip("scipy")


@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_blobs_are_found_whatever_the_scale(scale: float) -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(4, size=400)
    centres = np.array([[4, 0], [-4, 0], [0, 4], [0, -4]])
    x = torch.from_numpy(scale * (centres[labels] + 0.3 * generator.standard_normal((400, 2)))).float()
    found = fit_ddcl(x, 4, seed=0, steps=300, tau_start=6.0)
    assert hungarian_accuracy(labels, found.clusters) == 1.0
    assert np.array_equal(predict(found.readout, x), found.clusters)
    assert min(found.history["V"]) >= 0
    assert all(len(values) == 300 for values in found.history.values())
    # Above the critical temperature prototypes merge; cooling below it parts them.
    assert found.history["margin"][0] < 1 < found.history["margin"][-1]
    assert min(found.history["separation"]) < 0.5 * scale < 4 * scale < found.history["separation"][-1]
    assert found.history["L_q"][-1] < 0.2 * found.history["L_q"][0]

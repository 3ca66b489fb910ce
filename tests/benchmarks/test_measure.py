"""Every candidate trains and quantizes; peaks of memory and growth are what they should be."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vqlab.benchmarks.candidates import CANDIDATES, fsq_levels
from vqlab.benchmarks.measure import CandidateError, CandidateProcess, Case, peak_above


@pytest.mark.parametrize("name", list(CANDIDATES))
@pytest.mark.parametrize(("d", "k"), [(8, 64), (3, 512)])
def test_every_candidate_has_a_gradient_and_ids(name: str, d: int, k: int) -> None:
    if CANDIDATES[name].missing:
        pytest.skip(f"{CANDIDATES[name].missing} is not installed")
    torch.manual_seed(0)
    layer = CANDIDATES[name].build(d, k)
    z = torch.randn(40, d, requires_grad=True)
    layer.loss(z).backward()
    assert z.grad is not None
    assert torch.isfinite(z.grad).all()
    assert float(z.grad.norm()) > 0
    with torch.no_grad():
        ids = layer.ids(z)
    assert ids.shape == (40,)
    assert 0 <= int(ids.min()) <= int(ids.max()) < k
    assert len(ids.unique()) > 1


def test_ddcl_its_whole_matrix_and_its_definition_are_one_layer() -> None:
    torch.manual_seed(0)
    z, codes = torch.randn(50, 4), torch.randn(32, 4)
    grads, ids = [], []
    for name in ("ddcl", "plain", "reference"):
        layer = CANDIDATES[name].build(4, 32)
        with torch.no_grad():
            next(iter(layer.module.parameters())).copy_(codes)
        x = z.clone().requires_grad_()
        layer.loss(x).backward()
        grads.append(x.grad)
        ids.append(layer.ids(z))
    assert torch.equal(ids[0], ids[1])
    assert torch.equal(ids[0], ids[2])
    torch.testing.assert_close(grads[1], grads[2], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("bits", range(1, 19))
def test_levels_of_fsq_multiply_to_k(bits: int) -> None:
    levels = fsq_levels(1 << bits)
    assert np.prod(levels) == 1 << bits
    assert max(levels) <= 16
    assert min(levels) >= 2


@pytest.mark.parametrize("k", [0, 1, 3, 1000])
def test_fsq_refuses_other_sizes(k: int) -> None:
    with pytest.raises(ValueError, match=f"not {k} codes"):
        fsq_levels(k)


def test_peak_counts_what_is_held_at_once() -> None:
    def hold(blocks: int) -> None:
        held = [torch.ones(1 << 22) for _ in range(blocks)]  # 16 MiB each
        del held

    if peak_above(lambda: hold(1)) is None:
        pytest.skip("the system does not tell peaks")
    one, three = peak_above(lambda: hold(1)), peak_above(lambda: hold(3))
    assert one == pytest.approx(16, abs=6)
    assert three == pytest.approx(48, abs=6)


def test_a_process_answers_and_names_what_failed() -> None:
    process = CandidateProcess("ddcl", Case(64, 4, 32), threads=1)
    try:
        warmed = process.warm_up()
        assert warmed.train_s > 0
        assert len(process.seconds("train", at_least=0.0)) == 1
        assert sum(process.seconds("ids", at_least=0.02)) >= 0.02
    finally:
        process.close()
    broken = CandidateProcess("vqp-fsq", Case(64, 4, 33), threads=1)
    try:
        with pytest.raises(CandidateError, match=r"not 33 codes|No module named"):
            broken.warm_up()
    finally:
        broken.close()

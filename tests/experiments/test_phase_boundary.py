"""The phase boundary of collapse: where it is predicted, and that the measurement could find it elsewhere."""

import pytest
import torch

from vqlab.experiments import phase_boundary
from vqlab.experiments.phase_boundary import PREDICTED, growth_rate, measure_phase_boundary


@pytest.fixture
def tokens() -> torch.Tensor:
    shape = torch.tensor([2.0, 1.0, 0.3], dtype=torch.float64)
    return shape * torch.randn(400, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 5


def test_rates_and_boundaries_are_the_predicted_ones(tokens: torch.Tensor) -> None:
    result = measure_phase_boundary(tokens, [1.0, 1.9, 2.1, 3.9, 4.1, 6.0], prototypes=4)
    assert result.rates["measured"].tolist() == pytest.approx(result.rates["predicted"].tolist(), rel=1e-3, abs=1e-3)
    assert result.found == pytest.approx(PREDICTED, rel=1e-3)


@pytest.mark.parametrize(("name", "a"), PREDICTED.items())
def test_prototypes_separate_below_and_merge_above(name: str, a: float, tokens: torch.Tensor) -> None:
    assert growth_rate(name, tokens, 0.97 * a, 8) > 0 > growth_rate(name, tokens, 1.03 * a, 8)


def test_another_loss_has_another_boundary(tokens: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the temperature halved behind its back, collapse attracts from twice the ratio on."""
    original = phase_boundary.objective
    monkeypatch.setattr(phase_boundary, "objective", lambda name, z, p, t: original(name, z, p, t / 2))
    assert measure_phase_boundary(tokens, [3.5, 7.0, 9.0], prototypes=4).found == pytest.approx({"L_q": 8.0, "F": 4.0}, rel=1e-3)


def test_a_boundary_outside_the_ratios_is_not_made_up(tokens: torch.Tensor) -> None:
    found = measure_phase_boundary(tokens, [0.5, 1.0], prototypes=4).found
    assert all(value != value for value in found.values())

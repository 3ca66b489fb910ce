"""The schedule of tau against its formulas; its state travels in the state dict."""

import math

import pytest
import torch

from vqlab.quantizers.temperature import SHAPES, TemperatureSchedule

FORMULAS = {
    "geometric": lambda x: 0.1 * (0.005 / 0.1) ** x,
    "linear": lambda x: 0.1 + (0.005 - 0.1) * x,
    "cosine": lambda x: 0.1 + (0.005 - 0.1) * (1 - math.cos(math.pi * x)) / 2,
    "constant": lambda x: 0.1,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_follows_the_formula(shape: str, fraction: float) -> None:
    schedule = TemperatureSchedule(0.1, 0.005, shape, fraction)
    schedule.prepare(20)
    for step in range(30):
        x = min(1.0, step / (20 * fraction))
        assert float(schedule.tau) == pytest.approx(FORMULAS[shape](x), rel=1e-5), step
        assert schedule.tau.dtype == torch.float32
        assert schedule.tau.shape == ()
        schedule.advance()


@pytest.mark.parametrize("shape", SHAPES)
def test_stays_at_the_start_until_prepared(shape: str) -> None:
    schedule = TemperatureSchedule(0.1, 0.005, shape)
    for _ in range(5):
        schedule.advance()
    assert float(schedule.tau) == pytest.approx(0.1)


def test_may_heat_up() -> None:
    schedule = TemperatureSchedule(0.01, 1.0)
    schedule.prepare(2)
    schedule.advance()
    assert float(schedule.tau) == pytest.approx(0.1)


def test_state_dict_carries_step_and_length() -> None:
    schedule = TemperatureSchedule(0.1, 0.005)
    schedule.prepare(10)
    for _ in range(4):
        schedule.advance()
    state = schedule.state_dict()
    assert {name: int(value) for name, value in state.items()} == {"step": 4, "total": 10}
    again = TemperatureSchedule(0.1, 0.005)
    again.load_state_dict(state)
    assert torch.equal(again.tau, schedule.tau)
    again.advance()
    assert float(again.tau) < float(schedule.tau)
    assert int(schedule.step) == 4


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((0.0, 0.1), "tau_start"),
        ((0.1, 0.0), "tau_end"),
        ((-1.0, 0.1), "tau_start"),
        ((math.nan, 0.1), "tau_start"),
        ((0.1, math.inf), "tau_end"),
        ((0.1, 0.01, "exponential"), "tau_shape"),
        ((0.1, 0.01, "linear", 0.0), "tau_fraction"),
        ((0.1, 0.01, "linear", 1.5), "tau_fraction"),
        ((0.1, 0.01, "linear", math.nan), "tau_fraction"),
    ],
)
def test_refused_arguments(arguments: tuple, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        TemperatureSchedule(*arguments)

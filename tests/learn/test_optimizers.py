"""Two steps of each server optimizer on a model of two parameters, against the formulas in numpy."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from lesson.core.arrays import FloatArray
from lesson.core.errors import InputError
from lesson.learn.optimizers import OPTIMIZERS, ServerOptimizer
from lesson.settings.sections import ServerSettings
from lesson.settings.settings import Settings
from lesson.strategies import FADAS, FedBuff

MODEL, GRADIENTS = np.array([1.0, -2.0]), (np.array([0.5, -0.01]), np.array([0.1, 0.2]))
ETA, BETA1, BETA2, TAU = 0.3, 0.8, 0.95, 0.05
SERVER = {"learning_rate": ETA, "beta1": BETA1, "beta2": BETA2, "epsilon": TAU}

# Reddi et al., Algorithm 2, lines 14 to 16, for a pseudo-gradient g = −Δ.
SECOND_MOMENTS: dict[str, Callable[[FloatArray, FloatArray], FloatArray]] = {
    "adagrad": lambda v, g: v + g * g,
    "yogi": lambda v, g: v - (1 - BETA2) * g * g * np.sign(v - g * g),
    "adam": lambda v, g: BETA2 * v + (1 - BETA2) * g * g,
}


def make(name: str) -> ServerOptimizer:
    return ServerOptimizer(ServerSettings(optimizer=name, **SERVER))


def steps(name: str) -> list[FloatArray]:
    """Return the models after each gradient."""
    optimizer, model, models = make(name), torch.tensor(MODEL), []
    for gradient in GRADIENTS:
        model = optimizer.step(model, model - torch.tensor(gradient))
        models.append(model.numpy())
    return models


def test_momentum_by_hand() -> None:
    """m = g, then 0.8·(0.5, −0.01) + (0.1, 0.2) = (0.5, 0.192). The model: (1 − 0.15, −2 + 0.003), then
    (0.85 − 0.15, −1.997 − 0.0576)."""
    first, second = steps("momentum")
    assert first == pytest.approx([0.85, -1.997])
    assert second == pytest.approx([0.70, -2.0546])


@pytest.mark.parametrize("name", SECOND_MOMENTS)
def test_adaptive_optimizers_follow_the_paper(name: str) -> None:
    model, m, v = MODEL, np.zeros(2), np.full(2, TAU**2)
    for gradient, given in zip(GRADIENTS, steps(name), strict=True):
        m = BETA1 * m + (1 - BETA1) * gradient
        v = SECOND_MOMENTS[name](v, gradient)
        model = model - ETA * m / (np.sqrt(v) + TAU)
        assert given == pytest.approx(model, rel=1e-12)


def test_adam_by_hand() -> None:
    """v = 0.95·0.0025 + 0.05·0.25 = 0.014875, its root 0.121963; m = 0.2·0.5 = 0.1; 1 − 0.3·0.1/0.171963."""
    assert steps("adam")[0][0] == pytest.approx(0.825544, abs=1e-6)


def test_amsgrad_divides_by_the_largest_moment() -> None:
    """v = 0.05·(0.25, 0.0001) = (0.0125, 5e−6), then 0.95·v + 0.05·(0.01, 0.04) = (0.012375, 0.00200475): the first
    parameter keeps v̂ = 0.0125. m = (0.1, −0.002), then 0.8·m + 0.2·(0.1, 0.2) = (0.1, 0.0384)."""
    first, second = steps("amsgrad")
    assert first == pytest.approx([1 - 0.3 * 0.1 / (0.0125**0.5 + 0.05), -2 + 0.3 * 0.002 / (5e-6**0.5 + 0.05)])
    moved = [0.3 * 0.1 / (0.0125**0.5 + 0.05), 0.3 * 0.0384 / (0.00200475**0.5 + 0.05)]
    assert second == pytest.approx(first - moved)


@pytest.mark.parametrize("name", ["none", *OPTIMIZERS])
def test_scaling_a_step_does_not_change_the_moments(name: str) -> None:
    whole, quarter, model = make(name), make(name), torch.tensor(MODEL)
    step, scaled = (
        optimizer.step(model, model - torch.tensor(GRADIENTS[0]), scale) - model
        for optimizer, scale in ((whole, 1.0), (quarter, 0.25))
    )
    assert scaled.numpy() == pytest.approx(0.25 * step.numpy())
    assert whole.moments.keys() == quarter.moments.keys()
    assert all(torch.equal(moment, quarter.moments[key]) for key, moment in whole.moments.items())


def test_bias_correction_makes_the_first_step_of_amsgrad_that_of_its_sign() -> None:
    """m / 0.2 = g and √(v / 0.05) = |g|: the step is 0.3·g / (|g| + 0.05), for 0.5 and −0.01."""
    optimizer, model = (
        ServerOptimizer(ServerSettings(optimizer="amsgrad", **SERVER), corrects_bias=True),
        torch.tensor(MODEL),
    )
    first = optimizer.step(model, model - torch.tensor(GRADIENTS[0]))
    assert first.numpy() == pytest.approx([1 - 0.3 * 0.5 / 0.55, -2 + 0.3 * 0.01 / 0.06])


@pytest.mark.parametrize(("scale", "limit", "eta"), [(1.0, 0.1, 0.1), (0.25, 0.1, 0.075), (1.0, 0.5, 0.3)])
def test_step_size_is_at_most_the_limit(scale: float, limit: float, eta: float) -> None:
    """η = 0.3; v = 0.05·g² and m = 0.2·g."""
    model, gradient = torch.tensor(MODEL), torch.tensor(GRADIENTS[0])
    stepped = make("amsgrad").step(model, model - gradient, scale, limit=limit)
    expected = MODEL - eta * 0.2 * GRADIENTS[0] / (0.05**0.5 * np.abs(GRADIENTS[0]) + TAU)
    assert stepped.numpy() == pytest.approx(expected)
    plain = ServerOptimizer(ServerSettings()).step(model, model - gradient, limit=limit)
    assert plain.numpy() == pytest.approx(MODEL - limit * GRADIENTS[0])


def test_bias_correction_needs_amsgrad() -> None:
    for chosen in ("none", "amsgrad"):
        assert ServerOptimizer.of(ServerSettings(optimizer=chosen), FADAS(bias_correction=True)).corrects_bias
    with pytest.raises(InputError, match=r"bias_correction needs .* got 'adam'"):
        ServerOptimizer.of(ServerSettings(optimizer="adam"), FADAS(bias_correction=True))


def test_strategys_optimizer_is_only_a_default() -> None:
    plain, own = ServerOptimizer.of(ServerSettings(), FedBuff()), ServerOptimizer.of(ServerSettings(beta1=0.5), FADAS())
    other = ServerOptimizer.of(ServerSettings(optimizer="adam"), FADAS())
    assert [optimizer.settings.optimizer for optimizer in (plain, own, other)] == ["none", "amsgrad", "adam"]
    assert (own.settings.beta1, own.settings.step_size) == (0.5, 0.01)
    assert [bool(optimizer.note) for optimizer in (plain, own, other)] == [False, True, False]
    unknown = type("Mine", (FedBuff,), {"server_optimizer": "adan"})
    with pytest.raises(InputError, match="'adan' for Mine"):
        ServerOptimizer.of(ServerSettings(), unknown())


@pytest.mark.parametrize(
    "values", [{"optimizer": "sgd"}, {"learning_rate": 0.0}, {"beta1": 1.0}, {"epsilon": 0.0}, {"aggregate": "drop"}]
)
def test_invalid_settings_are_named(values: dict[str, object]) -> None:
    with pytest.raises(InputError, match=rf"\[server\] {next(iter(values))} must be"):
        Settings(server=values)


def test_default_step_size_depends_on_the_optimizer() -> None:
    for optimizer, step in (("none", 1.0), ("momentum", 1.0), ("adam", 0.01), ("yogi", 0.01)):
        assert ServerSettings(optimizer=optimizer).step_size == step
        assert ServerSettings(optimizer=optimizer, learning_rate=0.5).step_size == 0.5

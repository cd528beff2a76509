import numpy as np
import pytest

from lesson import InputError
from lesson.learn.data.samples import Samples
from lesson.learn.data.synthetic import draw_sizes, draw_synthetic


def clients_of(samples: Samples) -> list[np.ndarray]:
    """The training inputs of each client."""
    assert samples.clients is not None
    return [samples.train_inputs[own] for own in samples.clients]


def test_shapes_and_the_split_of_nine_to_one() -> None:
    samples, sizes = draw_synthetic(num_clients=5, seed=1), draw_sizes(5, seed=1)
    num_train = [size * 9 // 10 for size in sizes]
    assert [len(own) for own in samples.clients or []] == num_train
    assert samples.train_inputs.shape == (sum(num_train), 60)
    assert samples.train_inputs.dtype == np.float32
    assert samples.test_inputs.shape == (sum(sizes) - sum(num_train), 60)
    assert samples.train_targets.dtype == np.int64
    assert set(samples.train_targets) <= set(range(10))
    assert samples.class_names == tuple("0123456789")


def test_sizes_are_lognormal_plus_fifty() -> None:
    """The median of ⌊lognormal(4, 2)⌋ is ⌊e⁴⌋ = 54; 16 % are above e⁶ = 403."""
    sizes = np.array(draw_sizes(20_000, seed=0))
    assert sizes.min() >= 50
    assert abs(np.median(sizes) - 104) <= 3
    assert abs((sizes > 453).mean() - 0.159) < 0.01


def test_samples_depend_on_seed_and_client_alone() -> None:
    few, many, other = (draw_synthetic(num_clients=num, seed=seed) for num, seed in ((4, 3), (6, 3), (4, 4)))
    for one, same in zip(clients_of(few), clients_of(many), strict=False):
        np.testing.assert_array_equal(one, same)
    assert few.train_inputs[0, 0] != other.train_inputs[0, 0]


def test_variance_of_feature_j_is_j_to_the_minus_1_2() -> None:
    """Around each client's own mean: 1, 0.435, 0.268 for j = 1, 2, 3."""
    samples = draw_synthetic(num_clients=300, seed=0)
    centered = np.concatenate([own - own.mean(axis=0) for own in clients_of(samples)])
    np.testing.assert_allclose(centered[:, :3].var(axis=0), [1, 0.435, 0.268], rtol=0.05)


def test_beta_spreads_the_inputs() -> None:
    """The mean of a client's v_k over its 60 features is B_k ~ N(0, β), within 1 / √60 = 0.13."""

    def spread(beta: float) -> float:
        samples = draw_synthetic(beta=beta, num_clients=150, seed=0)
        return float(np.std([own.mean() for own in clients_of(samples)]))

    assert spread(0) == pytest.approx(0.13, rel=0.2)
    assert spread(1) == pytest.approx(1, rel=0.2)
    assert spread(3) == pytest.approx(3, rel=0.2)


def test_alpha_does_not_change_the_labels() -> None:
    """The shift u_k of all weights and biases adds u_k (1 + Σ x_j) to the score of every class."""
    without, with_alpha = (draw_synthetic(alpha=alpha, num_clients=5, seed=0) for alpha in (0.0, 1.0))
    np.testing.assert_array_equal(without.train_inputs, with_alpha.train_inputs)
    assert (without.train_targets == with_alpha.train_targets).mean() > 0.999


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": -1.0}, "alpha must"),
        ({"beta": float("inf")}, "beta must"),
        ({"num_clients": 0}, "num_clients must"),
        ({"num_clients": 100_000}, "num_clients must give at most 8333333 samples"),  # 500 million values
    ],
)
def test_invalid_options(options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        draw_synthetic(**options)  # type: ignore[arg-type]

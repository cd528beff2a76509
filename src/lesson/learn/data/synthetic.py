"""Synthetic(α, β) of Li et al., "Federated Optimization in Heterogeneous Networks" (FedProx), MLSys 2020.

Every client k labels its own samples with its own linear model: y = argmax softmax(W_k x + b_k). The entries of W_k and
b_k are N(u_k, 1) with u_k ~ N(0, α). The inputs x are N(v_k, Σ) with Σ_jj = j^(-1.2), where the entries of v_k are
N(B_k, 1) with B_k ~ N(0, β). As in the authors' code, α and β are standard deviations, and 90 % of a client's samples
are training data. In the IID variant, all clients share W, b ~ N(0, 1) and v = 0.

In the paper, α controls how much the clients' models differ. But u_k adds the same number to the scores of all classes,
which does not change the argmax: the labels do not depend on α, and the models differ for every α. β has an effect.
"""

import math

import numpy as np

from lesson.core.arrays import FloatArray
from lesson.core.errors import ArgumentError
from lesson.core.random import stream
from lesson.learn.data.samples import Samples, consecutive

MIN_SAMPLES = 50
TRAIN_SHARE = 0.9
MAX_VALUES = 5 * 10**8
"""Maximum number of values in all inputs together: 2 GB."""


def draw_synthetic(
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    num_clients: int = 30,
    num_features: int = 60,
    num_classes: int = 10,
    iid: bool = False,
    seed: int = 0,
) -> Samples:
    """Draw the samples of all clients. Inputs are float32 of shape (num, num_features).

    A client has 50 + ⌊z⌋ samples, where z is lognormal with μ = 4 and σ = 2: 104 in the median, about 450 on average,
    and more than 5,800 for one client in a hundred. In nine of ten cases, 30 clients have 5,000 to 31,000 samples
    in total. A client's samples stay the same if the number of clients increases.

    Args:
        alpha: Spread of the clients' mean weights, which has no effect on the labels (see above).
        beta: Spread of the clients' inputs.
        num_clients: Number of clients.
        num_features: Number of features of a sample.
        num_classes: Number of classes.
        iid: Whether all clients share one model and one distribution of inputs; alpha and beta then have no effect.
        seed: Random seed.
    """
    for name, spread in (("alpha", alpha), ("beta", beta)):
        if not 0 <= spread < math.inf:
            raise ArgumentError(name, f"must be a finite number >= 0, got {spread}")
    for name, count, least in (
        ("num_clients", num_clients, 1),
        ("num_features", num_features, 1),
        ("num_classes", num_classes, 2),
    ):
        if count < least:
            raise ArgumentError(name, f"must be >= {least}, got {count}")
    sizes = draw_sizes(num_clients, seed)
    if sum(sizes) * num_features > MAX_VALUES:
        most = MAX_VALUES // num_features
        raise ArgumentError("num_clients", f"must give at most {most} samples, got {sum(sizes)}; use fewer clients")
    shared = _draw_model(stream(seed, "synthetic/shared"), 0.0, num_features, num_classes) if iid else None
    inputs, targets = [], []
    for client, size in enumerate(sizes):
        rng = stream(seed, "synthetic", client)
        if shared is None:
            weights, bias = _draw_model(rng, rng.normal(0, alpha), num_features, num_classes)
            mean = rng.normal(rng.normal(0, beta), 1, num_features)
        else:
            (weights, bias), mean = shared, np.zeros(num_features)
        drawn = mean + rng.standard_normal((size, num_features)) * _deviations(num_features)
        inputs.append(drawn.astype(np.float32))
        targets.append(np.argmax(drawn @ weights + bias, axis=1))
    num_train = [int(TRAIN_SHARE * size) for size in sizes]
    return Samples(
        train_inputs=np.concatenate([own[:num] for own, num in zip(inputs, num_train, strict=True)]),
        train_targets=np.concatenate([own[:num] for own, num in zip(targets, num_train, strict=True)]),
        test_inputs=np.concatenate([own[num:] for own, num in zip(inputs, num_train, strict=True)]),
        test_targets=np.concatenate([own[num:] for own, num in zip(targets, num_train, strict=True)]),
        clients=consecutive(num_train),
        class_names=tuple(map(str, range(num_classes))),
    )


def draw_sizes(num_clients: int, seed: int) -> list[int]:
    """Return the number of samples of each client."""
    drawn = stream(seed, "synthetic/sizes").lognormal(4, 2, num_clients)
    return [MIN_SAMPLES + int(size) for size in drawn]


def _draw_model(
    rng: np.random.Generator, mean: float, num_features: int, num_classes: int
) -> tuple[FloatArray, FloatArray]:
    """Return weights of shape (num_features, num_classes) and biases, each entry N(mean, 1)."""
    return rng.normal(mean, 1, (num_features, num_classes)), rng.normal(mean, 1, num_classes)


def _deviations(num_features: int) -> FloatArray:
    """Return the standard deviation of each feature, the square root of Σ_jj = j^(-1.2)."""
    return np.arange(1, num_features + 1, dtype=np.float64) ** -0.6

"""Synthetic(α, β) of Li et al., "Federated Optimization in Heterogeneous Networks" (FedProx), MLSys 2020.

Every client k labels its own samples with its own linear model: y = argmax softmax(W_k x + b_k). The entries of W_k and
b_k are N(u_k, 1) with u_k ~ N(0, α). The inputs x are N(v_k, Σ) with Σ_jj = j^(-1.2), where the entries of v_k are
N(B_k, 1) with B_k ~ N(0, β). As in the authors' code, α and β are standard deviations, and 90 % of a client's samples
are training data.

In the paper, α controls how much the clients' models differ. But u_k adds the same number to the scores of all classes,
which does not change the argmax: the labels do not depend on α, and the models differ for every α. β has an effect.
"""

import math

import numpy as np

from lesson.core.errors import ArgumentError
from lesson.core.random import stream
from lesson.learn.data.samples import Samples, consecutive

NUM_FEATURES, NUM_CLASSES = 60, 10
MIN_SAMPLES = 50
TRAIN_SHARE = 0.9
MAX_VALUES = 5 * 10**8
"""Maximum number of values in all inputs together: 2 GB."""


def draw_synthetic(*, alpha: float = 1.0, beta: float = 1.0, num_clients: int = 30, seed: int = 0) -> Samples:
    """Draw the samples of all clients. Inputs are float32 of shape (num, NUM_FEATURES).

    A client has 50 + ⌊z⌋ samples, where z is lognormal with μ = 4 and σ = 2: 104 in the median, about 450 on average,
    and more than 5,800 for one client in a hundred. In nine of ten cases, 30 clients have 5,000 to 31,000 samples
    in total. A client's samples stay the same if the number of clients increases.

    Args:
        alpha: Spread of the clients' mean weights, which has no effect on the labels (see above).
        beta: Spread of the clients' inputs.
        num_clients: Number of clients.
        seed: Random seed.
    """
    for name, spread in (("alpha", alpha), ("beta", beta)):
        if not 0 <= spread < math.inf:
            raise ArgumentError(name, f"must be a finite number >= 0, got {spread}")
    if num_clients < 1:
        raise ArgumentError("num_clients", f"must be >= 1, got {num_clients}")
    sizes = draw_sizes(num_clients, seed)
    if sum(sizes) * NUM_FEATURES > MAX_VALUES:
        most = MAX_VALUES // NUM_FEATURES
        raise ArgumentError("num_clients", f"must give at most {most} samples, got {sum(sizes)}; use fewer clients")
    deviations = np.arange(1, NUM_FEATURES + 1, dtype=np.float64) ** -0.6  # the square roots of Σ_jj
    inputs, targets = [], []
    for client, size in enumerate(sizes):
        rng = stream(seed, "synthetic", client)
        shift = rng.normal(0, alpha)
        weights, bias = rng.normal(shift, 1, (NUM_FEATURES, NUM_CLASSES)), rng.normal(shift, 1, NUM_CLASSES)
        mean = rng.normal(rng.normal(0, beta), 1, NUM_FEATURES)
        drawn = mean + rng.standard_normal((size, NUM_FEATURES)) * deviations
        inputs.append(drawn.astype(np.float32))
        targets.append(np.argmax(drawn @ weights + bias, axis=1))
    num_train = [int(TRAIN_SHARE * size) for size in sizes]
    return Samples(
        train_inputs=np.concatenate([own[:num] for own, num in zip(inputs, num_train, strict=True)]),
        train_targets=np.concatenate([own[:num] for own, num in zip(targets, num_train, strict=True)]),
        test_inputs=np.concatenate([own[num:] for own, num in zip(inputs, num_train, strict=True)]),
        test_targets=np.concatenate([own[num:] for own, num in zip(targets, num_train, strict=True)]),
        clients=consecutive(num_train),
        class_names=tuple(map(str, range(NUM_CLASSES))),
    )


def draw_sizes(num_clients: int, seed: int) -> list[int]:
    """Return the number of samples of each client."""
    drawn = stream(seed, "synthetic/sizes").lognormal(4, 2, num_clients)
    return [MIN_SAMPLES + int(size) for size in drawn]

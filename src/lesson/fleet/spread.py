"""How latencies vary from one local training to the next, for measured clients with a mean and a standard deviation."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.random import Key, normals

MIN_FACTOR = 0.01
"""A latency is at least this multiple of its mean; a normal one would sometimes be negative."""


def _normal(cv: FloatArray, z: FloatArray) -> FloatArray:
    return 1 + cv * z


def _log_normal(cv: FloatArray, z: FloatArray) -> FloatArray:
    variance = np.log1p(cv**2)
    return np.asarray(np.exp(np.sqrt(variance) * z - variance / 2))


def _half_normal(cv: FloatArray, z: FloatArray) -> FloatArray:
    """Return a minimum plus |z| times a scale; |z| has the mean √(2/π) and the variance 1 − 2/π."""
    return 1 + cv * (np.abs(z) - math.sqrt(2 / math.pi)) / math.sqrt(1 - 2 / math.pi)


def _gamma(cv: FloatArray, z: FloatArray) -> FloatArray:
    from scipy.special import gammaincinv, ndtr  # not at the top: scipy takes a while to import

    shape = cv**-2.0
    return np.asarray(gammaincinv(shape, ndtr(z)) / shape)


DISTRIBUTIONS: dict[str, Callable[[FloatArray, FloatArray], FloatArray]] = {
    "normal": _normal,
    "log-normal": _log_normal,
    "half-normal": _half_normal,
    "gamma": _gamma,
}
"""Latencies divided by their mean, from their coefficients of variation and standard normal numbers."""
MAX_CV = {"normal": 0.5, "log-normal": 10.0, "half-normal": math.sqrt(math.pi / 2 - 1), "gamma": 2.0}
"""Largest ratios of standard deviation and mean. With these, the minimum of a half-normal latency is 0, and MIN_FACTOR
changes the mean of others by less than 1 %."""


@dataclass(frozen=True, eq=False)
class Spread:
    """Distributions of latencies around their means; arrays have shape (num_clients,).

    Attributes:
        cv: Coefficient of variation, the standard deviation divided by the mean; 0 if the latency does not vary.
        distribution: Place of the distribution in DISTRIBUTIONS.
    """

    cv: FloatArray
    distribution: IntArray

    def factors(self, key: Key, clients: IntArray, index: IntArray) -> FloatArray:
        """Return the latency of each client's index-th local training, divided by its mean, at least MIN_FACTOR."""
        cv, kinds, z = self.cv[clients], self.distribution[clients], normals(key, clients, index)
        factors = np.ones(len(clients))
        for place, distribution in enumerate(DISTRIBUTIONS.values()):
            rows = (kinds == place) & (cv > 0)
            if rows.any():
                factors[rows] = distribution(cv[rows], z[rows])
        return np.maximum(factors, MIN_FACTOR)

    def first(self, count: int) -> Self:
        """Return the distributions of the first `count` clients."""
        return type(self)(self.cv[:count], self.distribution[:count])

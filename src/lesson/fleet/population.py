"""Clients drawn at random: positions, transmit power, CPUs and numbers of samples."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.errors import InputError
from lesson.core.random import stream
from lesson.settings.sections import MAX_CLIENTS
from lesson.settings.settings import Settings


@dataclass(frozen=True, eq=False)
class Population:
    """Drawn clients, one row each; arrays have shape (num_clients,). The base station is at (0, 0).

    Attributes:
        x_km: x coordinate in km.
        y_km: y coordinate in km.
        power_w: Transmit power p in watts.
        cpu_hz: CPU frequency f in Hz.
        cycles_per_sample: CPU cycles C to train on one sample.
        num_samples: Number of training samples.
        seed: Random seed of the clients and of their channels.
        is_placed: Whether data rates depend on positions; they do not if channels are measured.
    """

    x_km: FloatArray
    y_km: FloatArray
    power_w: FloatArray
    cpu_hz: FloatArray
    cycles_per_sample: FloatArray
    num_samples: IntArray
    seed: int = 0
    is_placed: bool = True

    def __len__(self) -> int:
        return len(self.x_km)

    @property
    def distance_km(self) -> FloatArray:
        """Distance d to the base station, shape (num_clients,)."""
        return np.hypot(self.x_km, self.y_km)

    def first(self, count: int) -> "Population":
        """Return the first `count` clients."""
        cut: dict[str, Any] = {name: part[:count] for name, part in vars(self).items() if isinstance(part, np.ndarray)}
        return replace(self, **cut)


def draw_population(settings: Settings, num_clients: int | None = None, seed: int | None = None) -> Population:
    """Draw clients uniformly in the square, with uniform CPU frequency and cycles per sample.

    Args:
        settings: Area, radio and CPUs.
        num_clients: Number of clients; by default, the one in the settings. A client has the same values in a larger
            population.
        seed: Random seed; by default, the one in the settings.

    Raises:
        InputError: `num_clients` or `seed` is invalid.
    """
    fleet, seed = settings.fleet, settings.run.seed if seed is None else seed
    count = fleet.num_clients if num_clients is None else num_clients
    if not 1 <= count <= MAX_CLIENTS:
        raise InputError(f"num_clients must be from 1 to {MAX_CLIENTS}, got {count}")
    if seed < 0:
        raise InputError(f"seed must be >= 0, got {seed}")

    def uniform(what: str, low: float, high: float) -> FloatArray:
        return low + (high - low) * stream(seed, f"population/{what}").random(count)

    half = fleet.area_km / 2
    samples = settings.data.samples_per_client
    low, high = samples if isinstance(samples, tuple) else (samples, samples)
    return Population(
        x_km=uniform("x", -half, half),
        y_km=uniform("y", -half, half),
        power_w=np.full(count, settings.radio.power_w),
        cpu_hz=uniform("cpu", *fleet.cpu_hz),
        cycles_per_sample=uniform("cycles", *fleet.cycles_per_sample),
        num_samples=np.minimum(uniform("samples", low, high + 1).astype(np.int64), high),
        seed=seed,
        is_placed=settings.uses_positions,
    )

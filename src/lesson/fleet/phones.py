"""Data rates of measured phones: each client is one of 19 phones, and every transfer has a rate of its own.

`flash/speed_distri.json` holds the mean and the standard deviation of the down- and uplink throughput of 19 phones in
kbit/s. It comes from FLASH (https://github.com/PKU-Chengxu/FLASH, BSD 2-Clause License, beside the file), the platform
of Yang et al., "Characterizing Impacts of Heterogeneity in Federated Learning upon Large-Scale Smartphone Data", WWW
2021.

Rates are log-normal with the published mean and standard deviation. FLASH draws normal rates and repeats negative
draws, which changes both moments, and rates near 0 would make the mean upload time infinite.
"""

import json
from functools import cache
from importlib.resources import files
from typing import Literal, NamedTuple

import numpy as np

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.random import key, normals, uniforms

Direction = Literal["up", "down"]


class Throughput(NamedTuple):
    """Mean and standard deviation of the throughput of each phone in bit/s, shape (num_phones,)."""

    mean_bps: FloatArray
    std_bps: FloatArray


@cache
def measured_throughput(direction: Direction) -> Throughput:
    """Return the published throughput of the phones, in the order of the file."""
    phones = json.loads((files("lesson.fleet") / "flash" / "speed_distri.json").read_text()).values()
    mean_kbps, std_kbps = ([phone[f"{direction}_{what}"] for phone in phones] for what in ("u", "sigma"))
    return Throughput(1000 * np.array(mean_kbps), 1000 * np.array(std_kbps))


class PhoneRates:
    """Data rates of clients that are phones, each drawn with equal probability from the measured ones."""

    def __init__(self, num_clients: int, seed: int) -> None:
        num_phones = len(measured_throughput("up").mean_bps)
        self.phone: IntArray = np.floor(
            num_phones * uniforms(key(seed, "phones/phone"), np.arange(num_clients))
        ).astype(np.int64)
        """Which of the measured phones each client is, from 0, shape (num_clients,)."""
        self._keys = {direction: key(seed, f"phones/{direction}") for direction in ("up", "down")}

    def mean_bps(self, direction: Direction) -> FloatArray:
        """Return the mean rate of each client, shape (num_clients,)."""
        return measured_throughput(direction).mean_bps[self.phone]

    def rate_bps(self, direction: Direction, clients: IntArray, index: IntArray) -> FloatArray:
        """Return the rate of the transfers that belong to each client's index-th local training, shape (n,).

        Log-normal: exp(μ + σ·z) with σ² = ln(1 + (std / mean)²) and μ = ln(mean) − σ²/2.
        """
        mean_bps, std_bps = measured_throughput(direction)
        phone = self.phone[clients]
        variance = np.log1p((std_bps[phone] / mean_bps[phone]) ** 2)
        z = normals(self._keys[direction], clients, index)
        return mean_bps[phone] * np.exp(np.sqrt(variance) * z - variance / 2)

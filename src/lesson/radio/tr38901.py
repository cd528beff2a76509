"""Urban channel, 3GPP TR 38.901: path loss, line of sight, shadowing and Rician K, for UMa and UMi.

UMa is the urban macro cell, UMi the urban micro cell in a street canyon.

For outdoor users 1.5 m above the ground and carriers of 0.5 to 100 GHz. Distances are measured along the ground. The
models start at 10 m, which is used for closer clients, and end at 5 km, beyond which the formulas are extrapolated.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lesson.core.arrays import BoolArray, FloatArray

UrbanModel = Literal["uma", "umi"]

MIN_DISTANCE_M = 10.0
USER_HEIGHT_M = 1.5
_OBSTACLE_HEIGHT_M = 1.0  # effective environment height h_E, subtracted from both heights in the breakpoint distance
_LIGHT_MPS = 3e8  # rounded as in the standard
_ALWAYS_SEEN_M = 18.0


@dataclass(frozen=True)
class _Loss:
    """Path loss base + per_decade·log10(d) + per_carrier_decade·log10(f), with the 3D distance d in m and f in GHz."""

    base_db: float
    per_decade_db: float
    per_carrier_decade_db: float = 20.0

    def __call__(self, space_m: FloatArray, carrier_ghz: float) -> FloatArray:
        """Return the path loss in dB, with the shape of the distances."""
        carrier_db = self.per_carrier_decade_db * math.log10(carrier_ghz)
        return self.base_db + self.per_decade_db * np.log10(space_m) + carrier_db


@dataclass(frozen=True)
class _Urban:
    """One row of tables 7.4.1-1, 7.4.2-1 and 7.5-6 part 1. Terms in the user's height are 0 at 1.5 m and omitted.

    Pairs of shadowing are with and without line of sight. Only clients with line of sight have a Rician K.
    """

    station_height_m: float
    near: _Loss
    far: _Loss
    breakpoint_db: float
    hidden: _Loss
    sight_m: float
    shadowing_db: tuple[float, float]
    shadowing_km: tuple[float, float]
    k_mean_db: float
    k_deviation_db: float
    k_km: float


_MODELS: dict[UrbanModel, _Urban] = {
    "uma": _Urban(
        station_height_m=25.0,
        near=_Loss(28.0, 22.0),
        far=_Loss(28.0, 40.0),
        breakpoint_db=9.0,
        hidden=_Loss(13.54, 39.08),
        sight_m=63.0,
        shadowing_db=(4.0, 6.0),
        shadowing_km=(0.037, 0.05),
        k_mean_db=9.0,
        k_deviation_db=3.5,
        k_km=0.012,
    ),
    "umi": _Urban(
        station_height_m=10.0,
        near=_Loss(32.4, 21.0),
        far=_Loss(32.4, 40.0),
        breakpoint_db=9.5,
        hidden=_Loss(22.4, 35.3, 21.3),
        sight_m=36.0,
        shadowing_db=(4.0, 7.82),
        shadowing_km=(0.01, 0.013),
        k_mean_db=9.0,
        k_deviation_db=5.0,
        k_km=0.015,
    ),
}


def path_loss_db(
    model: UrbanModel, distance_km: FloatArray, carrier_ghz: float, line_of_sight: BoolArray
) -> FloatArray:
    """Return the path loss in dB, without shadowing, with the shape of the distances. Table 7.4.1-1."""
    row = _MODELS[model]
    ground_m = _ground_m(distance_km)
    drop_m = row.station_height_m - USER_HEIGHT_M
    space_m = np.hypot(ground_m, drop_m)
    break_m = breakpoint_km(model, carrier_ghz) * 1000
    far_db = row.far(space_m, carrier_ghz) - row.breakpoint_db * math.log10(break_m**2 + drop_m**2)
    seen_db = np.where(ground_m <= break_m, row.near(space_m, carrier_ghz), far_db)
    return np.where(line_of_sight, seen_db, np.maximum(seen_db, row.hidden(space_m, carrier_ghz)))


def breakpoint_km(model: UrbanModel, carrier_ghz: float) -> float:
    """Return the distance beyond which line-of-sight path loss is steeper: d'BP = 4·h'BS·h'UT·f/c, heights less 1 m."""
    station_m = _MODELS[model].station_height_m - _OBSTACLE_HEIGHT_M
    user_m = USER_HEIGHT_M - _OBSTACLE_HEIGHT_M
    return 4 * station_m * user_m * carrier_ghz * 1e9 / _LIGHT_MPS / 1000


def line_of_sight_probability(model: UrbanModel, distance_km: FloatArray) -> FloatArray:
    """Return the probability of line of sight, with the shape of the distances. Table 7.4.2-1."""
    ground_m = _ground_m(distance_km)
    sure: FloatArray = np.minimum(1.0, _ALWAYS_SEEN_M / ground_m)
    return sure + np.exp(-ground_m / _MODELS[model].sight_m) * (1 - sure)


def shadowing_db(model: UrbanModel, line_of_sight: BoolArray) -> FloatArray:
    """Return the standard deviation of shadowing in dB, with the shape of `line_of_sight`. Table 7.4.1-1."""
    seen_db, hidden_db = _MODELS[model].shadowing_db
    return np.where(line_of_sight, seen_db, hidden_db)


def shadowing_km(model: UrbanModel) -> tuple[float, float]:
    """Return the correlation distances of shadowing, with and without line of sight. Table 7.5-6 part 1."""
    return _MODELS[model].shadowing_km


def rician_k_db(model: UrbanModel) -> tuple[float, float]:
    """Return the mean and standard deviation in dB of the Rician K, normal in dB. Table 7.5-6 part 1.

    K is the power of the direct path over that of all others. It exists only with line of sight.
    """
    return _MODELS[model].k_mean_db, _MODELS[model].k_deviation_db


def rician_k_km(model: UrbanModel) -> float:
    """Return the correlation distance of the Rician K. Table 7.5-6 part 1."""
    return _MODELS[model].k_km


def _ground_m(distance_km: FloatArray) -> FloatArray:
    return np.maximum(distance_km * 1000, MIN_DISTANCE_M)

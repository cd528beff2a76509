"""Gain of the channel between clients and the base station, without fading: by position, from a map, or your own."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from zipfile import BadZipFile

import numpy as np

from lesson.core.arrays import BoolArray, FloatArray, IntArray
from lesson.core.errors import InputError
from lesson.core.plugins import call_custom, load_named
from lesson.core.random import key, normals, uniforms
from lesson.radio import tr38901
from lesson.radio.mobility import Positions
from lesson.radio.path_loss import log_distance_path_loss_db
from lesson.radio.shadowing import GaussianField
from lesson.settings.sections import RadioSettings

SIGHT_KM = 0.05
"""Correlation distance of line of sight, TR 38.901, table 7.6.3.1-2."""

NEAREST_KM = 1e-6
"""Distance from the base station that is used for clients which are closer: path loss is undefined at the station."""

SHADOWING_KM, RICIAN_K_DB = 0.05, 9.0
"""Values for models other than uma and umi: those of UMa, without and with line of sight, TR 38.901, table 7.5-6."""

URBAN: dict[str, tr38901.UrbanModel] = {"uma": "uma", "umi": "umi"}
MAP_ARRAYS = ("x_km", "y_km", "gain_db")


PositionsAt = Callable[[IntArray, FloatArray], Positions]
"""Returns the coordinates x and y in km of clients, shape (n, 1), at times in seconds, shape (n, K) or (1, K)."""


@dataclass(frozen=True, eq=False)
class Site:
    """What a channel may depend on. The base station is at (0, 0).

    Attributes:
        num_clients: Number of clients.
        seed: Random seed of the channel.
        carrier_ghz: Carrier frequency in GHz.
        positions: Returns the coordinates x and y in km of clients, shape (n, 1), at times in seconds, shape (n, K) or
            (1, K); both have shape (n, K).
    """

    num_clients: int
    seed: int
    carrier_ghz: float
    positions: PositionsAt

    def uniforms(self, what: str, *ids: Any) -> FloatArray:
        """Return uniform numbers between 0 and 1 that depend only on the seed, `what` and the ids.

        Ids are whole numbers, such as clients and minutes. The result has the shape that they broadcast to.
        """
        return uniforms(key(self.seed, f"channel/{what}"), *(np.asarray(one, np.int64) for one in ids))

    def normals(self, what: str, *ids: Any) -> FloatArray:
        """Return standard normal numbers that depend only on the seed, `what` and the ids; see `uniforms`."""
        return normals(key(self.seed, f"channel/{what}"), *(np.asarray(one, np.int64) for one in ids))


class Channel(Protocol):
    """A channel model; your own is created with a `Site`."""

    def gain_db(self, clients: IntArray, times_s: FloatArray) -> FloatArray:
        """Return the gain in dB of clients, shape (n, 1), at times, shape (n, K) or (1, K), without fading.

        A gain must depend only on the seed, the client and the time, not on what is asked together or before; −inf
        means no channel.
        """
        ...


class PlacedChannel:
    """Path loss and shadowing at a client's position. In cities, shadowing and Rician K depend on line of sight."""

    def __init__(self, radio: RadioSettings, site: Site) -> None:
        self._radio, self._positions, seed = radio, site.positions, site.seed
        self._model = URBAN.get(radio.path_loss)
        self._own_loss = load_custom(radio)
        self._sights = GaussianField(seed, "line of sight", SIGHT_KM)
        seen_km = hidden_km = SHADOWING_KM if radio.shadowing_km is None else radio.shadowing_km
        if self._model and radio.shadowing_km is None:
            seen_km, hidden_km = tr38901.shadowing_km(self._model)
        self._shadows = GaussianField(seed, "shadowing in sight", seen_km), GaussianField(seed, "shadowing", hidden_km)
        self._k = GaussianField(seed, "Rician K", tr38901.rician_k_km(self._model)) if self._model else None

    def gain_db(self, clients: IntArray, times_s: FloatArray) -> FloatArray:
        return self.gain_at_db(*self._positions(clients, times_s))

    def k_db(self, clients: IntArray, times_s: FloatArray) -> FloatArray | float:
        """Return the Rician K of clients in whole dB, shape (n, K), or one for all; −inf without line of sight."""
        if self._model is None or self._k is None:
            return RICIAN_K_DB
        x_km, y_km = self._positions(clients, times_s)
        mean_db, deviation_db = tr38901.rician_k_db(self._model)
        drawn_db = np.rint(mean_db + deviation_db * self._k(x_km, y_km))
        return np.where(self._line_of_sight(self._model, x_km, y_km), drawn_db, -np.inf)

    def gain_at_db(self, x_km: FloatArray, y_km: FloatArray) -> FloatArray:
        """Return the gain in dB at each position, with the shape of the positions."""
        radio, distance_km = self._radio, np.maximum(np.hypot(x_km, y_km), NEAREST_KM)
        seen, deviation_db = np.zeros(np.shape(x_km), dtype=np.bool_), np.array(radio.shadowing_db or 0.0)
        if self._model:
            seen = self._line_of_sight(self._model, x_km, y_km)
            loss_db = tr38901.path_loss_db(self._model, distance_km, radio.carrier_ghz, seen)
            if radio.shadowing_db is None:
                deviation_db = tr38901.shadowing_db(self._model, seen)
        elif self._own_loss is not None:
            loss_db = checked(f"[radio] path_loss '{radio.path_loss}'", distance_km.shape, self._own_loss, distance_km)
        else:
            loss_db = log_distance_path_loss_db(distance_km, radio.path_loss_1km_db, radio.path_loss_slope_db)
        if np.any(deviation_db):
            shadows = np.empty_like(distance_km)
            for field, here in zip(self._shadows, (seen, ~seen), strict=True):
                shadows[here] = field(x_km[here], y_km[here])
            loss_db = loss_db + deviation_db * shadows
        return -loss_db

    def _line_of_sight(self, model: tr38901.UrbanModel, x_km: FloatArray, y_km: FloatArray) -> BoolArray:
        """Return which positions have line of sight to the base station; nearby positions mostly agree."""
        if self._radio.line_of_sight != "drawn":
            return np.full(np.shape(x_km), self._radio.line_of_sight == "always")
        from scipy.special import ndtr  # few fleets need it

        probability = tr38901.line_of_sight_probability(model, np.hypot(x_km, y_km))
        share: FloatArray = ndtr(self._sights(x_km, y_km))
        return np.less(share, probability)


class GainMap:
    """Gains in dB on a grid, interpolated bilinearly between its points; positions outside have that of the edge."""

    def __init__(self, file: Path, site: Site) -> None:
        self._positions = site.positions
        try:
            with np.load(file) as arrays:
                self._x_km, self._y_km, self._gain_db = (np.asarray(arrays[name], np.float64) for name in MAP_ARRAYS)
        except (OSError, EOFError, ValueError, TypeError, KeyError, BadZipFile) as error:
            raise InputError(f"{file}: not a map of gains, an NPZ file with {', '.join(MAP_ARRAYS)}: {error}") from None
        shape = len(np.atleast_1d(self._y_km)), len(np.atleast_1d(self._x_km))
        if self._gain_db.shape != shape or min(shape) < 2:
            raise InputError(
                f"{file}: gain_db must have one row per y_km and one column per x_km, at least two of each; got shapes "
                f"{self._gain_db.shape}, {self._y_km.shape} and {self._x_km.shape}"
            )
        if not (np.all(np.diff(self._x_km) > 0) and np.all(np.diff(self._y_km) > 0)):
            raise InputError(f"{file}: x_km and y_km must ascend")
        if not np.isfinite(self._gain_db).all():
            raise InputError(f"{file}: gain_db must be finite")

    def gain_db(self, clients: IntArray, times_s: FloatArray) -> FloatArray:
        x_km, y_km = self._positions(clients, times_s)
        column, right = _between(self._x_km, x_km)
        row, up = _between(self._y_km, y_km)
        gain = self._gain_db
        low = (1 - right) * gain[row, column] + right * gain[row, column + 1]
        high = (1 - right) * gain[row + 1, column] + right * gain[row + 1, column + 1]
        return np.asarray((1 - up) * low + up * high)


class OwnChannel:
    """A user's channel, whose gains are checked."""

    def __init__(self, radio: RadioSettings, site: Site) -> None:
        self._name = f"[radio] channel '{radio.channel}'"
        self._channel: Channel = call_custom(self._name, load_custom(radio), site)
        if not callable(getattr(self._channel, "gain_db", None)):
            raise InputError(f"{self._name} must have a method gain_db(clients, times_s)")

    def gain_db(self, clients: IntArray, times_s: FloatArray) -> FloatArray:
        shape = np.broadcast_shapes(clients.shape, times_s.shape)
        return checked(self._name, shape, self._channel.gain_db, clients, times_s)


def k_db_of(radio: RadioSettings, channel: Channel, clients: IntArray, times_s: FloatArray) -> FloatArray | float:
    """Return the Rician K of clients, shape (n, 1), at times, in dB, or one for all; −inf for Rayleigh."""
    if radio.fading != "rician":
        return -np.inf
    if radio.rician_k_db is None and isinstance(channel, PlacedChannel):
        return channel.k_db(clients, times_s)
    return RICIAN_K_DB if radio.rician_k_db is None else radio.rician_k_db


def make_channel(radio: RadioSettings, site: Site) -> Channel:
    """Return the channel of the settings."""
    if radio.channel:
        return OwnChannel(radio, site)
    return GainMap(Path(radio.gain_map), site) if radio.gain_map else PlacedChannel(radio, site)


def load_custom(radio: RadioSettings) -> Any:
    """Return the user's channel class or path-loss function; None if there is none. InputError: it cannot be loaded."""
    if radio.channel:
        return load_named("[radio] channel", radio.channel)
    if ":" in radio.path_loss:
        return load_named("[radio] path_loss", radio.path_loss, "module:function")
    return None


def checked(name: str, shape: tuple[int, ...], function: Callable[..., Any], *arguments: Any) -> FloatArray:
    """Return the decibels that a user's function returns; raise InputError unless they have the shape."""
    values = call_custom(name, function, *arguments)
    try:
        decibels = np.broadcast_to(np.asarray(values, np.float64), shape)
    except (TypeError, ValueError):
        raise InputError(f"{name} must return one number per client and time, shape {shape}, got {values!r}") from None
    if np.any(np.isnan(decibels) | np.isposinf(decibels)):
        raise InputError(f"{name} must return numbers in dB, got nan or inf")
    return decibels


def _between(grid: FloatArray, values: FloatArray) -> tuple[IntArray, FloatArray]:
    """Return the grid interval of each value, and how far it lies in it, from 0 to 1."""
    places = np.clip(np.searchsorted(grid, values, side="right") - 1, 0, len(grid) - 2)
    return places, np.clip((values - grid[places]) / (grid[places + 1] - grid[places]), 0.0, 1.0)

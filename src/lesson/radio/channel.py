"""Time-independent channel loss as a function of position: path loss by the selected model, and shadowing."""

import numpy as np

from lesson.core.arrays import BoolArray, FloatArray
from lesson.radio.path_loss import log_distance_path_loss_db
from lesson.radio.shadowing import GaussianField
from lesson.radio.tr38901 import UrbanModel, line_of_sight_probability, path_loss_db
from lesson.settings.settings import Settings

SIGHT_KM = 0.05
"""Correlation distance of line of sight, TR 38.901, table 7.6.3.1-2."""

NEAREST_KM = 1e-6
"""Distance from the base station that is used for clients which are closer: path loss is undefined at the station."""


class Channel:
    """Time-independent loss between a position and the base station at (0, 0)."""

    def __init__(self, settings: Settings, seed: int) -> None:
        self._settings = settings
        self._shadows = GaussianField(seed, "shadowing", settings.radio.shadowing_km)
        self._sights = GaussianField(seed, "line of sight", SIGHT_KM)

    def loss_db(self, x_km: FloatArray, y_km: FloatArray) -> FloatArray:
        """Return path loss plus shadowing in dB at each position, with the shape of the positions."""
        settings, distance_km = self._settings, np.maximum(np.hypot(x_km, y_km), NEAREST_KM)
        if settings.radio.path_loss == "log-distance":
            loss_db = log_distance_path_loss_db(
                distance_km, settings.radio.path_loss_1km_db, settings.radio.path_loss_slope_db
            )
        else:
            seen = self._line_of_sight(settings.radio.path_loss, x_km, y_km)
            loss_db = path_loss_db(settings.radio.path_loss, distance_km, settings.radio.carrier_ghz, seen)
        if settings.radio.shadowing_db:
            loss_db = loss_db + settings.radio.shadowing_db * self._shadows(x_km, y_km)
        return loss_db

    def _line_of_sight(self, model: UrbanModel, x_km: FloatArray, y_km: FloatArray) -> BoolArray:
        """Return which positions have line of sight to the base station; nearby positions mostly agree."""
        settings = self._settings
        if settings.radio.line_of_sight != "drawn":
            return np.full(np.shape(x_km), settings.radio.line_of_sight == "always")
        from scipy.special import ndtr  # few fleets need it

        probability = line_of_sight_probability(model, np.hypot(x_km, y_km))
        share: FloatArray = ndtr(self._sights(x_km, y_km))
        return np.less(share, probability)

"""The radio link between a client and the base station, Eq. (5) and (6): path loss, shadowing, fading and mobility, and
when transfers complete on changing or shared channels."""

from lesson.radio.fading import FadingKind, fading_gain
from lesson.radio.link import gain, rate_bps, signal_to_noise, upload_s, watts
from lesson.radio.mobility import Itinerary, RandomWaypoint
from lesson.radio.path_loss import log_distance_path_loss_db
from lesson.radio.shadowing import GaussianField, shadowing_db
from lesson.radio.sharing import SharedBand
from lesson.radio.snr_traces import SnrTraces
from lesson.radio.tr38901 import UrbanModel, breakpoint_km, line_of_sight_probability, path_loss_db
from lesson.radio.transfer import block_at, finish_s

__all__ = [
    "FadingKind",
    "GaussianField",
    "Itinerary",
    "RandomWaypoint",
    "SharedBand",
    "SnrTraces",
    "UrbanModel",
    "block_at",
    "breakpoint_km",
    "fading_gain",
    "finish_s",
    "gain",
    "line_of_sight_probability",
    "log_distance_path_loss_db",
    "path_loss_db",
    "rate_bps",
    "shadowing_db",
    "signal_to_noise",
    "upload_s",
    "watts",
]

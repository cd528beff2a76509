"""The radio link of a client, Eq. (5) and (6): path loss, gain, rate and upload time as pure functions."""

from lesson.radio.link import gain, rate_bps, signal_to_noise, upload_s, watts
from lesson.radio.path_loss import log_distance_path_loss_db
from lesson.radio.sharing import SharedBand
from lesson.radio.transfer import block_at, finish_s

__all__ = [
    "SharedBand",
    "block_at",
    "finish_s",
    "gain",
    "log_distance_path_loss_db",
    "rate_bps",
    "signal_to_noise",
    "upload_s",
    "watts",
]

"""The parameters of the paper's Table I and Section V-A, and how those of a preset are written."""

import math
from collections.abc import Callable
from typing import NamedTuple

from lesson.settings.settings import Settings


class Row(NamedTuple):
    """A parameter: its name, the settings, the paper's value, and how that of a preset is written."""

    name: str
    fields: tuple[str, ...]
    paper: str
    show: Callable[[Settings], str]


def _uniform(bounds: tuple[float, float], scale: float) -> str:
    return f"U({bounds[0] / scale:g}, {bounds[1] / scale:g})"


def _cycles(settings: Settings) -> str:
    exponent = math.floor(math.log10(settings.fleet.cycles_per_sample[0]))
    return f"{_uniform(settings.fleet.cycles_per_sample, 10.0**exponent)}·10^{exponent}"


def _local_work(settings: Settings) -> str:
    count, unit = (
        (settings.training.local_epochs, "epoch")
        if settings.training.local_epochs
        else (settings.training.local_steps, "minibatch step")
    )
    return f"{count} {unit}{'' if count == 1 else 's'}"


PARAMETERS = (
    Row("clients", ("fleet.num_clients",), "50", lambda s: f"{s.fleet.num_clients}"),
    Row(
        "area, with the base station at its center",
        ("fleet.area_km",),
        "2 km × 2 km",
        lambda s: f"{s.fleet.area_km:g} km × {s.fleet.area_km:g} km",
    ),
    Row(
        "path loss, d in km",
        ("radio.path_loss_1km_db", "radio.path_loss_slope_db"),
        "128.1 + 37.6·d",
        lambda s: f"{s.radio.path_loss_1km_db:g} + {s.radio.path_loss_slope_db:g}·log10(d) dB",
    ),
    Row("transmit power p", ("radio.power_w",), "1 W", lambda s: f"{s.radio.power_w:g} W"),
    Row("bandwidth b per client", ("radio.bandwidth_hz",), "30 kHz", lambda s: f"{s.radio.bandwidth_hz / 1e3:g} kHz"),
    Row(
        "noise and inter-cell interference N0", ("radio.noise_dbm",), "-94 dBm", lambda s: f"{s.radio.noise_dbm:g} dBm"
    ),
    Row("model size s", ("upload.model_bits",), "100 kbit", lambda s: f"{s.upload.bits / 1e3:g} kbit"),
    Row("CPU frequency f", ("fleet.cpu_hz",), "U(0.8, 3) GHz", lambda s: f"{_uniform(s.fleet.cpu_hz, 1e9)} GHz"),
    Row("CPU cycles C per sample", ("fleet.cycles_per_sample",), "U(3, 5)·10^5", _cycles),
    Row(
        "local iterations θ·log2(1/ε)",
        ("training.theta", "training.epsilon"),
        "1 × log2(1/0.05)",
        lambda s: f"{s.training.theta:g} × log2(1/{s.training.epsilon:g})",
    ),
    Row("samples |D| per client", ("data.samples_per_client",), "1000", lambda s: f"{s.data.samples_per_client}"),
    Row(
        "samples |D| that compute time is charged for",
        ("training.latency_samples",),
        "1000 (Table I) or 20 (Section V-A.2)",
        lambda s: f"{s.training.latency_samples}",
    ),
    Row("local work", ("training.local_steps", "training.local_epochs"), "1 epoch of 20 samples", _local_work),
    Row("batch size", ("training.batch_size",), "20", lambda s: f"{s.training.batch_size}"),
    Row("step size δ", ("training.learning_rate",), "0.1", lambda s: f"{s.training.learning_rate:g}"),
    Row(
        "upper bound of the step size j·δ",
        ("training.lr_cap",),
        "not mentioned",
        lambda s: f"{s.training.lr_cap:g}" if math.isfinite(s.training.lr_cap) else "none",
    ),
    Row("deadline τ", ("strategy.deadline_s",), "20 s (also 10 s and 60 s)", lambda s: f"{s.strategy.deadline_s:g} s"),
    Row(
        "empty tier 1",
        ("strategy.ensure_first_tier",),
        "not mentioned",
        lambda s: "filled with the fastest client" if s.strategy.ensure_first_tier else "stays empty",
    ),
    Row(
        "aggregation weights",
        ("training.weighting",),
        "by samples, Eq. (10)",
        lambda s: "by samples" if s.training.weighting == "samples" else s.training.weighting,
    ),
    Row("label concentration β", ("data.beta",), "1 (also 0.1 and 10)", lambda s: f"{s.data.beta:g}"),
    Row(
        "data split",
        ("data.split",),
        "Dirichlet per client",
        lambda s: s.data.split.replace("-", " ").capitalize(),
    ),
)

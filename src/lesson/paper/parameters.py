"""The paper's Table I and the rest of its Section V-A beside what the two scenarios have."""

import math
from collections.abc import Callable
from typing import NamedTuple

import pandas as pd

from lesson.settings.scenario import Scenario


class _Row(NamedTuple):
    parameter: str
    fields: tuple[str, ...]
    paper: str
    show: Callable[[Scenario], str]


def parameters() -> pd.DataFrame:
    """A row per parameter: its name, the setting, what the paper says and what the scenarios have, as text."""
    printed, released = Scenario(preset="printed"), Scenario(preset="released")
    return pd.DataFrame(
        {
            "parameter": row.parameter,
            "setting": ", ".join(f"scenario.{name}" for name in row.fields),
            "paper": row.paper,
            "printed": row.show(printed),
            "released": row.show(released),
        }
        for row in _ROWS
    )


def _uniform(bounds: tuple[float, float], scale: float) -> str:
    return f"U({bounds[0] / scale:g}, {bounds[1] / scale:g})"


def _cycles(scenario: Scenario) -> str:
    exponent = math.floor(math.log10(scenario.cycles_per_sample[0]))
    return f"{_uniform(scenario.cycles_per_sample, 10.0**exponent)}·10^{exponent}"


def _local_work(scenario: Scenario) -> str:
    count, unit = (
        (scenario.local_epochs, "epoch") if scenario.local_epochs else (scenario.local_steps, "minibatch step")
    )
    return f"{count} {unit}{'' if count == 1 else 's'}"


_ROWS = (
    _Row("clients", ("num_clients",), "50", lambda s: f"{s.num_clients}"),
    _Row(
        "area, base station at its center",
        ("area_km",),
        "2 km × 2 km",
        lambda s: f"{s.area_km:g} km × {s.area_km:g} km",
    ),
    _Row(
        "path loss, d in km",
        ("path_loss_1km_db", "path_loss_slope_db"),
        "128.1 + 37.6·d",
        lambda s: f"{s.path_loss_1km_db:g} + {s.path_loss_slope_db:g}·log10(d) dB",
    ),
    _Row("transmit power p", ("power_w",), "1 W", lambda s: f"{s.power_w:g} W"),
    _Row("bandwidth b of a client", ("bandwidth_hz",), "30 kHz", lambda s: f"{s.bandwidth_hz / 1e3:g} kHz"),
    _Row("noise and inter-cell interference N0", ("noise_dbm",), "-94 dBm", lambda s: f"{s.noise_dbm:g} dBm"),
    _Row("size s of a model", ("model_bits",), "100 kbit", lambda s: f"{s.model_bits / 1e3:g} kbit"),
    _Row("CPU frequency f", ("cpu_hz",), "U(0.8, 3) GHz", lambda s: f"{_uniform(s.cpu_hz, 1e9)} GHz"),
    _Row("CPU cycles C of a sample", ("cycles_per_sample",), "U(3, 5)·10^5", _cycles),
    _Row(
        "local iterations θ·log2(1/ε)",
        ("theta", "epsilon"),
        "1 × log2(1/0.05)",
        lambda s: f"{s.theta:g} × log2(1/{s.epsilon:g})",
    ),
    _Row("samples |D| of a client", ("samples_per_client",), "1000", lambda s: f"{s.samples_per_client}"),
    _Row(
        "samples |D| in the compute latency",
        ("latency_samples",),
        "1000 (Table I) or 20 (Section V-A.2)",
        lambda s: f"{s.latency_samples}",
    ),
    _Row("local work", ("local_steps", "local_epochs"), "1 epoch, of 20 samples", _local_work),
    _Row("batch size", ("batch_size",), "20", lambda s: f"{s.batch_size}"),
    _Row("step size δ", ("learning_rate",), "0.1", lambda s: f"{s.learning_rate:g}"),
    _Row(
        "upper bound of the step size j·δ",
        ("lr_cap",),
        "not mentioned",
        lambda s: f"{s.lr_cap:g}" if math.isfinite(s.lr_cap) else "none",
    ),
    _Row("deadline τ", ("deadline_s",), "20 s (also 10 s and 60 s)", lambda s: f"{s.deadline_s:g} s"),
    _Row(
        "empty tier 1",
        ("ensure_first_tier",),
        "not mentioned",
        lambda s: "fastest client put there" if s.ensure_first_tier else "stays empty",
    ),
    _Row(
        "weights of a merge",
        ("weighting",),
        "by samples, Eq. (10)",
        lambda s: "by samples" if s.weighting == "samples" else s.weighting,
    ),
    _Row("concentration β of the labels", ("beta",), "1 (also 0.1 and 10)", lambda s: f"{s.beta:g}"),
    _Row("split of the data", ("split",), "Dirichlet per client", lambda s: s.split.replace("-", " ").capitalize()),
)

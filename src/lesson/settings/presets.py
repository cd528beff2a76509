"""The presets: `released` (the authors' code), `printed` (the paper's text), `phones` (measured data rates) and `chen`
(another system).

Only `released` gives the results that the paper prints. docs/reference/released.md has file and line of its numbers.
"""

import math
from typing import Any

PRINTED: dict[str, dict[str, Any]] = {
    "fleet": {"cycles_per_sample": (3e5, 5e5)},
    "radio": {"power_w": 1.0, "noise_dbm": -94.0},
    "training": {"latency_samples": 1000, "weighting": "samples", "lr_cap": math.inf},
    "data": {"split": "dirichlet-per-client"},
}
"""Parameters in the paper's text that differ from those of `released`, which are the defaults of `sections.py`."""

PHONES: dict[str, dict[str, Any]] = {
    "fleet": {"cycles_per_sample": (3e5, 5e5)},
    "radio": {"throughput": "phones"},
    "training": {"local_steps": 15, "latency_samples": "processed", "weighting": "samples", "lr_cap": 0.2},
    "upload": {"model_bits": "actual"},
    "strategy": {"deadline_s": 1.0},
}
"""A fleet of phones that train on 300 samples and upload a model of its actual size at measured data rates.

CPU frequencies and cycles per sample are those of the paper's text: about 1,000 samples per second.
"""

CHEN: dict[str, dict[str, Any]] = {
    "fleet": {
        "num_clients": 9,
        "area_km": math.sqrt(0.5),  # its corners are 500 m from the base station
        "cpu_hz": (1e9, 1e9),
        "cycles_per_sample": (40 * 0.606689453125, 40 * 0.606689453125),
        "energy_kappa": 1e-27,
        "max_update_j": 0.003,
    },
    "radio": {
        "bandwidth_hz": 1e6,
        "power_w": 0.01,
        "noise_dbm": -50.0,
        "path_loss_1km_db": 60.0,
        "path_loss_slope_db": 20.0,
        "packet_error": "exponential",
        "waterfall_db": 10 * math.log10(1.08),
    },
    "training": {"latency_samples": 1, "latency_passes": 1, "weighting": "samples"},
    "data": {"samples_per_client": (100, 500)},
    "upload": {"model_bits": 606_689.453125},
    "strategy": {"deadline_s": 0.5},
}
"""The system of M. Chen et al., "A Joint Learning and Communications Framework for Federated Learning over Wireless
Networks", 2021, as in the file FLMIN.m of github.com/mzchen0/Wireless-FL (commit 71ff082e). N0 is the interference on
its best resource block. As there, the compute energy is that of 40 cycles per megabit of the model, and computing takes
no time.

Departures: clients are uniform in a square, not in distance; the downlink, of at most 7 ms, is neglected.
"""

PRESETS: dict[str, dict[str, dict[str, Any]]] = {"released": {}, "printed": PRINTED, "phones": PHONES, "chen": CHEN}

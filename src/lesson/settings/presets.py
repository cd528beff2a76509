"""The presets: `released` (the authors' code), `printed` (the paper's text) and `phones` (measured data rates).

Only `released` gives the results that the paper prints.
"""

import math
from typing import Any

PRINTED: dict[str, dict[str, Any]] = {
    "fleet": {"cycles_per_sample": (3e5, 5e5)},
    "radio": {"power_w": 1.0, "noise_dbm": -94.0},
    "training": {"latency_samples": 1000, "weighting": "samples", "lr_cap": math.inf},
    "data": {"split": "dirichlet-per-client"},
}
"""Parameters in the paper's text that differ from the released code, which has the defaults of `sections.py`."""

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

PRESETS: dict[str, dict[str, dict[str, Any]]] = {"released": {}, "printed": PRINTED, "phones": PHONES}

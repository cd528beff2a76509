"""The two presets: the paper's printed parameters do not give its printed results, its authors' released code does."""

import math
from typing import Any

PRINTED: dict[str, dict[str, Any]] = {
    "fleet": {"cycles_per_sample": (3e5, 5e5)},
    "radio": {"power_w": 1.0, "noise_dbm": -94.0},
    "training": {"latency_samples": 1000, "weighting": "samples", "lr_cap": math.inf},
    "data": {"split": "dirichlet-per-client"},
    "strategy": {"ensure_first_tier": False},
}
"""What the paper's text says where the released code differs; the defaults in `sections.py` are the code's."""

PRESETS: dict[str, dict[str, dict[str, Any]]] = {"released": {}, "printed": PRINTED}

"""The two presets, `released` (the authors' code) and `printed` (the paper's text).

Only `released` gives the results that the paper prints.
"""

import math
from typing import Any

PRINTED: dict[str, dict[str, Any]] = {
    "fleet": {"cycles_per_sample": (3e5, 5e5)},
    "radio": {"power_w": 1.0, "noise_dbm": -94.0},
    "training": {"latency_samples": 1000, "weighting": "samples", "lr_cap": math.inf},
    "data": {"split": "dirichlet-per-client"},
    "strategy": {"ensure_first_tier": False},
}
"""Parameters in the paper's text that differ from the released code, which has the defaults of `sections.py`."""

PRESETS: dict[str, dict[str, dict[str, Any]]] = {"released": {}, "printed": PRINTED}

"""One colour per tier, fast to slow, told apart by colour-blind readers too and visible on dark and on white."""

import numpy as np

_ANCHORS = np.array([[44, 123, 182], [38, 166, 154], [242, 185, 80], [240, 127, 60], [176, 32, 42]])


def tier_colours(num_tiers: int) -> list[str]:
    """As many colours as tiers, as #rrggbb."""
    at = np.linspace(0, len(_ANCHORS) - 1, num_tiers)
    channels = [np.interp(at, np.arange(len(_ANCHORS)), channel) for channel in _ANCHORS.T]
    return [f"#{round(r):02x}{round(g):02x}{round(b):02x}" for r, g, b in zip(*channels, strict=True)]

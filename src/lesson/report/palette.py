"""Colours that colour-blind readers tell apart too: one per tier, fast to slow, and one per label."""

import numpy as np

_ANCHORS = np.array([[44, 123, 182], [38, 166, 154], [242, 185, 80], [240, 127, 60], [176, 32, 42]])

# Paul Tol's muted scheme.
LABEL_COLOURS = (
    "#332288",
    "#88CCEE",
    "#44AA99",
    "#117733",
    "#999933",
    "#DDCC77",
    "#CC6677",
    "#882255",
    "#AA4499",
    "#DDDDDD",
)


def tier_colours(num_tiers: int, strength: float = 1.0) -> list[str]:
    """As many colours as tiers, as #rrggbb, visible on dark and on white; below strength 1 paler, under marks."""
    at = np.linspace(0, len(_ANCHORS) - 1, num_tiers)
    anchors = 255 - strength * (255 - _ANCHORS)
    channels = [np.interp(at, np.arange(len(anchors)), channel) for channel in anchors.T]
    return [f"#{round(r):02x}{round(g):02x}{round(b):02x}" for r, g, b in zip(*channels, strict=True)]

"""Color-blind safe colors for tiers (from fast to slow), labels and lines."""

import itertools
from collections.abc import Sequence

import numpy as np

TIER_ANCHORS = [[44, 123, 182], [38, 166, 154], [242, 185, 80], [240, 127, 60], [176, 32, 42]]
"""RGB values from the fastest to the slowest tier; colors in between are interpolated."""
# Okabe and Ito's palette. A strategy has the same color in every figure.
_STRATEGIES = {"lesson": "#0072B2", "fedavg": "#D55E00", "fedcs": "#009E73"}
_OTHERS = ("#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
_PALE = "#F0E442"
"""Too pale for thin lines."""
STYLES = ("-", "--", ":", "-.")
Look = tuple[str, str]
"""The color and the style of a line."""
_LOOKS: tuple[Look, ...] = (
    *((color, style) for style in STYLES for color in _OTHERS if color != _PALE),
    *((color, style) for style in STYLES if style != "-" for color in _STRATEGIES.values()),
)
_BASELINES = (
    *("fedbuff", "fedasync", "fedat", "tifl", "lesson-filled", "fedcs-greedy"),
    *("safa", "semisync-steps", "ca2fl", "fadas", "rennala", "malenia", "fedcompass", "fedqueue", "refl", "oort"),
)
_FIXED = {name: (color, "-") for name, color in _STRATEGIES.items()} | dict(zip(_BASELINES, _LOOKS, strict=False))
"""Look of each built-in strategy, no matter which others are shown."""

# Paul Tol's muted scheme.
LABEL_COLORS = (
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


def tier_colors(num_tiers: int, strength: float = 1.0) -> list[str]:
    """Return one color per tier as #rrggbb, visible on dark and on white; a `strength` below 1 makes them paler."""
    at = np.linspace(0, len(TIER_ANCHORS) - 1, num_tiers)
    anchors = 255 - strength * (255 - np.array(TIER_ANCHORS))
    channels = [np.interp(at, np.arange(len(anchors)), channel) for channel in anchors.T]
    return [f"#{round(r):02x}{round(g):02x}{round(b):02x}" for r, g, b in zip(*channels, strict=True)]


def series_colors(labels: Sequence[str]) -> list[str]:
    """Return a color for each line; a line labeled LESSON, FedAvg or FedCS gets the color of that strategy."""
    others = itertools.cycle(_OTHERS)
    return [_STRATEGIES.get(label.lower()) or next(others) for label in labels]


def line_looks(labels: Sequence[str]) -> list[Look]:
    """Return a color and a style for each of many lines: all colors solid, then dashed, dotted and dash-dotted."""
    others = itertools.cycle(_LOOKS)
    return [(_STRATEGIES[label], "-") if label in _STRATEGIES else next(others) for label in labels]


def strategy_looks(names: Sequence[str]) -> list[Look]:
    """Return the look of each strategy, the same in every figure; custom strategies get looks that are still free."""
    taken = {_FIXED[name] for name in names if name in _FIXED}
    free = itertools.cycle([look for look in _LOOKS if look not in taken])
    return [_FIXED.get(name) or next(free) for name in names]

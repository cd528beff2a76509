"""Colors that color-blind readers tell apart too: one per tier, fast to slow, one per label, one per line."""

import itertools
from collections.abc import Sequence

import numpy as np

TIER_ANCHORS = [[44, 123, 182], [38, 166, 154], [242, 185, 80], [240, 127, 60], [176, 32, 42]]
"""Red, green, blue; tiers between are mixed."""
# Okabe and Ito's colors; the same strategy has the same color everywhere.
_STRATEGIES = {"lesson": "#0072B2", "fedavg": "#D55E00", "fedcs": "#009E73"}
_OTHERS = ("#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
_PALE = "#F0E442"
"""Too pale for a thin line among many."""
STYLES = ("-", "--", ":", "-.")
Look = tuple[str, str]
"""A color and the style of a line."""
_LOOKS: tuple[Look, ...] = tuple((color, style) for style in STYLES for color in _OTHERS if color != _PALE)
_BASELINES = ("fedbuff", "fedasync", "fedat", "tifl", "lesson-memory", "lesson-filled", "lesson-adaptive")
_FIXED = {name: (color, "-") for name, color in _STRATEGIES.items()} | dict(
    zip((*_BASELINES, "fedcs-greedy", "safa", "semisync-steps"), _LOOKS, strict=False)
)
"""How each strategy looks, whoever else is there."""

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
    """As many colors as tiers, as #rrggbb, visible on dark and on white; below strength 1 paler, under marks."""
    at = np.linspace(0, len(TIER_ANCHORS) - 1, num_tiers)
    anchors = 255 - strength * (255 - np.array(TIER_ANCHORS))
    channels = [np.interp(at, np.arange(len(anchors)), channel) for channel in anchors.T]
    return [f"#{round(r):02x}{round(g):02x}{round(b):02x}" for r, g, b in zip(*channels, strict=True)]


def series_colours(labels: Sequence[str]) -> list[str]:
    """A color for each line of a figure; that of its strategy, where the label is one's name."""
    others = itertools.cycle(_OTHERS)
    return [_STRATEGIES.get(label.lower()) or next(others) for label in labels]


def line_looks(labels: Sequence[str]) -> list[Look]:
    """A color and a style for each of many lines: the colors once through solid, then dashed, then dotted."""
    others = itertools.cycle(_LOOKS)
    return [(_STRATEGIES[label], "-") if label in _STRATEGIES else next(others) for label in labels]


def strategy_looks(names: Sequence[str]) -> list[Look]:
    """The look of each strategy, the same in every figure; those of one's own take what the others leave."""
    taken = {_FIXED[name] for name in names if name in _FIXED}
    free = itertools.cycle([look for look in _LOOKS if look not in taken])
    return [_FIXED.get(name) or next(free) for name in names]

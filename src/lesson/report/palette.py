"""Color-blind safe colors for tiers (from fast to slow), labels and lines."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

TIER_ANCHORS = [[44, 123, 182], [38, 166, 154], [242, 185, 80], [240, 127, 60], [176, 32, 42]]
"""RGB values from the fastest to the slowest tier; colors in between are interpolated."""
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
"""Okabe and Ito's palette without yellow, which is too pale for lines, and with gray for black, for dark pages."""
STYLES = ("-", "--", ":", "-.")
Look = tuple[str, str]
"""The color and the style of a line."""
_LOOKS: tuple[Look, ...] = tuple((color, style) for style in STYLES for color in _COLORS)
_STRATEGIES = (
    *("lesson", "fedavg", "fedcs", "fedbuff", "fedasync", "fedat", "tifl"),
    *("lesson-fitted", "semisync-steps", "fedcs-greedy", "ca2fl", "fadas", "safa", "rennala"),
    *("malenia", "fedcompass", "fedqueue", "refl", "oort", "fedsasync", "ace"),
    *("ringmaster", "ringleader", "rescaled-asgd"),
)
_FIXED = dict(zip(_STRATEGIES, _LOOKS, strict=False))
"""Look of each built-in strategy, no matter which others are shown."""
_Choice = TypeVar("_Choice")

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


def line_looks(labels: Sequence[Sequence[Any]]) -> list[Look]:
    """Return the color and style of each line, given the values of the settings in which the lines differ.

    The first setting determines the color, and the others the style. If there are too few styles, the first two
    settings determine the color, and so on. Each built-in strategy has its own color in every figure.
    """
    looks: list[Look] = []
    for num_first in range(1, max(map(len, labels), default=0) + 1):
        looks = _looks([tuple(label[:num_first]) for label in labels], [tuple(label[num_first:]) for label in labels])
        if len(set(looks)) == len(labels):
            break
    return looks


def _looks(firsts: Sequence[tuple[Any, ...]], others: Sequence[tuple[Any, ...]]) -> list[Look]:
    """Return looks: `firsts` determine the color, and `others` the style if there are several."""
    different = list(dict.fromkeys(others))
    if len(different) == 1:
        looks = _assign(firsts, _FIXED, _LOOKS)
        return [looks[first] for first in firsts]
    colors = _assign(firsts, {name: color for name, (color, _) in _FIXED.items()}, _COLORS)
    styles = dict(zip(different, itertools.cycle(STYLES), strict=False))
    return [(colors[first], styles[other]) for first, other in zip(firsts, others, strict=True)]


def _assign(
    firsts: Sequence[tuple[Any, ...]], fixed: Mapping[Any, _Choice], choices: Sequence[_Choice]
) -> dict[tuple[Any, ...], _Choice]:
    """Assign a choice to each of `firsts`: that of its strategy if it is free, else the next free one, cyclically."""
    assigned: dict[tuple[Any, ...], _Choice] = {}
    for first in dict.fromkeys(firsts):
        if first[0] in fixed and fixed[first[0]] not in assigned.values():
            assigned[first] = fixed[first[0]]
    free = itertools.cycle([one for one in choices if one not in assigned.values()] or choices)
    return {first: assigned[first] if first in assigned else next(free) for first in dict.fromkeys(firsts)}

"""Claims about latencies, tiers and network sizes; none of them needs training."""

from dataclasses import replace

import numpy as np

from lesson.core.arrays import FloatArray
from lesson.experiments.measures import Estimate
from lesson.learn.models import CifarNet, MnistNet
from lesson.paper import fleets
from lesson.paper.claims.base import CALLED, claim
from lesson.paper.items import base_settings, load_item
from lesson.paper.series import Series
from lesson.paper.verdicts import Part, Rule, above, below, near
from lesson.settings.settings import Settings

LITERAL = "close_early = false"
NEGLIGIBLE = 0.05
"""Share of the latency up to which a part of it is negligible."""


@claim(
    "table2",
    "Average latency of a global round at τ = 20 s",
    "FedAvg 68 s; FedCS 20 s; LESSON 20 s, 48 s less than FedAvg",
    "table2",
    constructed=True,
)
def _table2(_: Series) -> list[Part]:
    less = _round_s("released", "fedavg") - _round_s("released", "lesson")
    return [
        *(_table2_part("released", name) for name in fleets.PAPER_ROUND_S),
        Part.of("FedAvg − LESSON", less, _within_5_percent(48), "seconds"),
    ]


@claim(
    "table2-printed",
    "Average latency of a global round at τ = 20 s, with the printed parameters",
    "FedAvg 68 s; LESSON 20 s",
    "table2",
)
def _table2_printed(_: Series) -> list[Part]:
    """As in the paper, LESSON waits for the deadline; FedCS is left out, as its rounds last τ by definition."""
    literal = _round_s("printed", f"lesson, {LITERAL}")
    early = _table2_part("printed", "lesson")
    return [
        _table2_part("printed", "fedavg"),
        Part.of(f"LESSON, {LITERAL}", literal, _within_5_percent(fleets.PAPER_ROUND_S["lesson"]), "seconds"),
        replace(early, label="LESSON, closing at the last arrival", added=True),
    ]


@claim("rounds-done", "At 20,000 s FedAvg has completed 588 rounds and LESSON 2,000", "588; 2,000", "table2")
def _rounds_done(_: Series) -> list[Part]:
    done = {name: 20_000 / _round_s("released", name) for name in ("fedavg", "lesson")}
    return [
        Part.of("FedAvg", done["fedavg"], _within_5_percent(588), "count"),
        Part.of("LESSON", done["lesson"], _within_5_percent(2000), "count"),
        Part.of("LESSON / FedAvg", done["lesson"] / done["fedavg"], _within_5_percent(3.4), "times", added=True),
    ]


@claim("median-latency", "The median client latency is about 10 s", "~10 s", "fig3")
def _median_latency(_: Series) -> list[Part]:
    num_draws, rule = load_item("fig3").options["num_draws"], near(fleets.PAPER_MEDIAN_S, 2)
    draws = {preset: fleets.latency_summary(Settings(preset=preset), num_draws) for preset in fleets.SCENARIOS}
    return [Part.of(preset, one["median_s"].to_numpy(), rule, "seconds") for preset, one in draws.items()]


@claim(
    "deadline-tiers",
    "A longer τ gives fewer tiers, less staleness and more uploads per round",
    "fewer; less; more",
    "fig2",
    constructed=True,
)
def _deadline_tiers(_: Series) -> list[Part]:
    draws = fleets.deadline_effects()
    parts = []
    for column, sign, what in (
        ("num_tiers", -1, "fewer tiers"),
        ("staleness", -1, "less staleness"),
        ("updates_per_round", 1, "more uploads per round"),
    ):
        values = {tau: sign * draws[draws["deadline_s"] == tau][column].to_numpy(float) for tau in (10, 20, 60)}
        parts += [
            Part.of(f"{what} at τ = {long} s than at {short} s", values[long] - values[short], above(), "number")
            for short, long in ((10, 20), (20, 60))
        ]
    return parts


@claim(
    "networks",
    "Number of parameters of the two networks",
    "CIFAR-10 1,144,650; MNIST 61,706",
    "table1",
    constructed=True,
)
def _networks(_: Series) -> list[Part]:
    said = {"CIFAR-10": (1_144_650, CifarNet), "MNIST": (61_706, MnistNet)}
    return [
        Part(label, Estimate.of(np.array([float(count)])), near(value, 0), "count", exact=True)
        for label, (value, network) in said.items()
        for count in [sum(one.numel() for one in network().parameters())]
    ]


@claim("broadcast", "The broadcast of the model takes a negligible time", "negligible", "table2")
def _broadcast(_: Series) -> list[Part]:
    """Each client receives the model on its own band, from a base station of 20 W; the paper names no power."""
    shares = fleets.broadcast_shares(base_settings().with_changes(download=True, station_power_w=20.0))
    return [Part.of("share of the latency of a client", shares, below(NEGLIGIBLE))]


def _table2_part(preset: str, strategy: str) -> Part:
    rule = _within_5_percent(fleets.PAPER_ROUND_S[strategy])
    return Part.of(CALLED[strategy], _round_s(preset, strategy), rule, "seconds")


def _within_5_percent(value: float) -> Rule:
    return near(value, 0.05 * value)


def _round_s(preset: str, strategy: str) -> FloatArray:
    """Return the mean round length in each draw of Table II, in seconds."""
    draws = fleets.round_lengths(**load_item("table2").options)
    return draws[(draws["scenario"] == preset) & (draws["strategy"] == strategy)]["round_s"].to_numpy()

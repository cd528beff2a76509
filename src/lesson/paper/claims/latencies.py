"""Claims about latencies, tiers and network sizes; none of them needs training."""

import numpy as np

from lesson.core.arrays import FloatArray
from lesson.experiments.measures import Series
from lesson.learn.models import cifar_net, mnist_net
from lesson.paper import fleets
from lesson.paper.claims.base import CALLED, claim
from lesson.paper.items import load_item
from lesson.paper.verdicts import Part, above, near


@claim(
    "table2",
    "Average latency of a global round at τ = 20 s",
    "FedAvg 68 s; FedCS 20 s; LESSON 20 s, 48 s less than FedAvg",
    "table2",
)
def _table2(_: Series) -> list[Part]:
    less = _round_s("released", "fedavg") - _round_s("released", "lesson")
    return [*_table2_of("released"), Part("FedAvg − LESSON", less, near(48, 0.05 * 48), "seconds")]


@claim(
    "table2-printed",
    "Average latency of a global round at τ = 20 s, with the printed parameters",
    "FedAvg 68 s; LESSON 20 s",
    "table2",
)
def _table2_printed(_: Series) -> list[Part]:
    return [part for part in _table2_of("printed") if part.label != "FedCS"]  # its rounds last τ by definition


@claim("rounds-done", "At 20,000 s FedAvg has completed 588 rounds and LESSON 2,000", "588; 2,000", "table2")
def _rounds_done(_: Series) -> list[Part]:
    done = {name: 20_000 / _round_s("released", name) for name in ("fedavg", "lesson")}
    return [
        Part("FedAvg", done["fedavg"], near(588, 0.05 * 588), "count"),
        Part("LESSON", done["lesson"], near(2000, 0.05 * 2000), "count"),
        Part("LESSON / FedAvg", done["lesson"] / done["fedavg"], near(3.4, 0.05 * 3.4), "times"),
    ]


@claim("median-latency", "The median client latency is about 10 s", "~10 s", "fig3")
def _median_latency(_: Series) -> list[Part]:
    draws = fleets.latency_summary(load_item("fig3").options["num_draws"])
    return [
        Part(
            preset, draws[draws["scenario"] == preset]["median_s"].to_numpy(), near(fleets.PAPER_MEDIAN_S, 2), "seconds"
        )
        for preset in fleets.SCENARIOS
    ]


@claim(
    "deadline-tiers",
    "A longer τ gives fewer tiers, less staleness and more uploads per round",
    "fewer; less; more",
    "fig2",
)
def _deadline_tiers(_: Series) -> list[Part]:
    draws = fleets.deadline_effects()
    signs = {"num_tiers": -1, "staleness": -1, "updates_per_round": 1}
    parts = []
    for column, sign in signs.items():
        values = {tau: sign * draws[draws["deadline_s"] == tau][column].to_numpy(float) for tau in (10, 20, 60)}
        what = {
            "num_tiers": "fewer tiers",
            "staleness": "less staleness",
            "updates_per_round": "more uploads per round",
        }[column]
        parts += [
            Part(f"{what} at τ = {long} s than at {short} s", values[long] - values[short], above(), "number")
            for short, long in ((10, 20), (20, 60))
        ]
    return parts


@claim("networks", "Number of parameters of the two networks", "CIFAR-10 1,144,650; MNIST 61,706", "table1")
def _networks(_: Series) -> list[Part]:
    said = {"CIFAR-10": (1_144_650, cifar_net), "MNIST": (61_706, mnist_net)}
    return [
        Part(
            label,
            np.array([sum(one.numel() for one in network().parameters())]),
            near(value, 0),
            "count",
            exact=True,
        )
        for label, (value, network) in said.items()
    ]


def _table2_of(preset: str) -> list[Part]:
    return [
        Part(CALLED[name], _round_s(preset, name), near(paper_s, 0.05 * paper_s), "seconds")
        for name, paper_s in fleets.PAPER_ROUND_S.items()
    ]


def _round_s(preset: str, strategy: str) -> FloatArray:
    """Return the mean round length in each draw of Table II, in seconds."""
    draws = fleets.round_lengths(**load_item("table2").options)
    return draws[(draws["scenario"] == preset) & (draws["strategy"] == strategy)]["round_s"].to_numpy()

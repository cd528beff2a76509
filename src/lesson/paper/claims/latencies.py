"""Claims about latencies, tiers and networks, which nothing need be trained for."""

from functools import cache

import numpy as np

from lesson.arrays import FloatArray
from lesson.learn.models import FACTORIES, initial_vector
from lesson.paper import fleets
from lesson.paper.claims.base import CALLED, DATASETS, claim
from lesson.paper.results import Results
from lesson.paper.verdicts import Part, above, near


@claim("table2", "Average latency of a global round at τ = 20 s", "FedAvg 68 s; FedCS 20 s; LESSON 20 s", "table2")
def _table2(_: Results) -> list[Part]:
    return [
        Part(CALLED[name], _round_s("released", name), near(paper_s, 0.05 * paper_s), "seconds")
        for name, paper_s in fleets.PAPER_ROUND_S.items()
    ]


@claim("table2-printed", "The same with the parameters of the text", "FedAvg 68 s; FedCS 20 s; LESSON 20 s", "table2")
def _table2_printed(_: Results) -> list[Part]:
    return [
        Part(CALLED[name], _round_s("printed", name), near(paper_s, 0.05 * paper_s), "seconds")
        for name, paper_s in fleets.PAPER_ROUND_S.items()
    ]


@claim("rounds-done", "At 20,000 s FedAvg has made 588 rounds, LESSON 2,000", "588; 2,000", "table2")
def _rounds_done(_: Results) -> list[Part]:
    parts = []
    for time_s in (20_000, 40_000):
        for name, said in (("fedavg", 588), ("lesson", 2000)):
            done = time_s / _round_s("released", name)
            parts.append(Part(f"{CALLED[name]} at {time_s:,} s", done, near(said, 0.05 * said), "count"))
    ratio = _round_s("released", "fedavg") / _round_s("released", "lesson")
    return [*parts, Part("LESSON's over FedAvg's", ratio, near(2000 / 588, 0.05 * 2000 / 588), "times")]


@claim("median-latency", "The median latency of the clients is about 10 s", "~10 s", "fig3")
def _median_latency(_: Results) -> list[Part]:
    draws = fleets.latency_summary()
    return [
        Part(preset, draws[draws["scenario"] == preset]["median_s"].to_numpy(), near(10, 2), "seconds")
        for preset in fleets.SCENARIOS
    ]


@claim("deadline-tiers", "A longer τ makes fewer tiers and more uploads per round", "fewer; more", "fig2")
def _deadline_tiers(_: Results) -> list[Part]:
    draws = fleets.deadline_effects()
    tiers, uploads = (
        {tau: draws[draws["deadline_s"] == tau][column].to_numpy(float) for tau in (10, 20, 60)}
        for column in ("num_tiers", "updates_per_round")
    )
    steps = ((10, 20), (20, 60))
    return [
        *(
            Part(f"tiers at τ = {short} less at {long}", tiers[short] - tiers[long], above(), "number")
            for short, long in steps
        ),
        *(
            Part(f"uploads at τ = {long} less at {short}", uploads[long] - uploads[short], above(), "number")
            for short, long in steps
        ),
    ]


@claim("networks", "Parameters of the two networks", "CIFAR-10 1,144,650; MNIST 61,706", "table1")
def _networks(_: Results) -> list[Part]:
    said = {"CIFAR-10": 1_144_650, "MNIST": 61_706}
    return [
        Part(label, np.array([len(initial_vector(FACTORIES[DATASETS[label]], seed=0))]), near(value, 0), "count")
        for label, value in said.items()
    ]


_round_lengths = cache(fleets.round_lengths)


def _round_s(preset: str, strategy: str) -> FloatArray:
    """Seconds of a round in each draw of Table II."""
    draws = _round_lengths()
    return draws[(draws["scenario"] == preset) & (draws["strategy"] == strategy)]["round_s"].to_numpy()

"""Claims about LESSON's deadline, its limits among them: Fig. 8 and 9."""

import numpy as np

from lesson.arrays import FloatArray
from lesson.paper import fleets
from lesson.paper.claims.base import BETAS, DEADLINE_ROUNDS, claim, longer
from lesson.paper.items import load_item
from lesson.paper.measures import accuracy_at, common_target, last_accuracy, per_seed, times_longer
from lesson.paper.results import Results
from lesson.paper.verdicts import Part, above, near


@claim("deadlines-accuracy", "Per round τ = 60 s is the most accurate at both β", "highest", "fig8")
def _deadlines_accuracy(results: Results) -> list[Part]:
    parts = []
    for beta in ("0.1", "1"):
        last = {tau: last_accuracy(results, _deadline(tau, beta), DEADLINE_ROUNDS) for tau in (10, 20, 60)}
        parts += [Part(f"β = {beta}: τ = 60 less {tau}", last[60] - last[tau], above(), "points") for tau in (10, 20)]
    return parts


@claim("deadlines-time", "Over time τ = 60 s is the slowest at β = 0.1", "slowest", "fig9")
def _deadlines_time(results: Results) -> list[Part]:
    target = common_target(results, [_deadline(tau, "0.1") for tau in (10, 20, 60)])
    return [
        longer(
            results,
            f"time of τ = 60 to {target:.0%} over that of {tau}",
            _deadline(60, "0.1"),
            _deadline(tau, "0.1"),
            target,
            "time_s",
        )
        for tau in (10, 20)
    ]


@claim("short-deadline-sensitive", "τ = 10 s is the most sensitive to β", "most sensitive", "fig8")
def _sensitive(results: Results) -> list[Part]:
    def loss(tau: int) -> FloatArray:
        even, uneven = (last_accuracy(results, _deadline(tau, beta), DEADLINE_ROUNDS) for beta in ("1", "0.1"))
        return even - uneven

    return [
        Part(f"what β = 0.1 costs at τ = 10 less at {tau}", loss(10) - loss(tau), above(), "points") for tau in (20, 60)
    ]


@claim("spread-grows", "The deadlines differ more over time at β = 1 than at 0.1", "grows", "fig9")
def _spread(results: Results) -> list[Part]:
    target = common_target(results, [_deadline(tau, beta) for tau in (10, 60) for beta in ("0.1", "1")])
    even, uneven = (
        times_longer(results, _deadline(60, beta), _deadline(10, beta), target, "time_s")[0] for beta in ("1", "0.1")
    )
    label = f"time of τ = 60 to {target:.0%} over that of 10, at β = 1 less at 0.1"
    return [Part(label, even - uneven, above(), "times")]


@claim("infinite-deadline", "LESSON with τ → ∞ is FedAvg", "acts as FedAvg", "limits")
def _infinite(results: Results) -> list[Part]:
    rounds = 1000
    pairs = zip(results["lesson-mnist-deadline_s=inf"], results["fedavg-mnist"], strict=True)
    curves = [(ours.up_to(rounds), theirs.up_to(rounds)) for ours, theirs in pairs]
    columns = ["round", "time_s", "accuracy"]
    off = [float(np.abs(ours[columns].to_numpy() - theirs[columns].to_numpy()).max()) for ours, theirs in curves]
    return [Part("greatest difference in round, time or accuracy", np.array(off), near(0, 0), "times")]


@claim("zero-deadline", "LESSON with τ → 0 acts as asynchronous FL", "acts as asynchronous FL", "limits")
def _zero(_: Results) -> list[Part]:
    options = load_item("limits").options
    draws = fleets.towards_zero((0.1,), options["num_draws"], options["until_s"])
    return [
        Part("τ = 0.1 s: merges of a single update", draws["single_share"].to_numpy(), above(0.5)),
        Part("updates a second over the asynchronous", draws["updates_of_async"].to_numpy(), near(1, 0.02), "times"),
    ]


@claim(
    "asynchronous-diverges", "As τ → 0 the convergence issue of asynchronous FL appears", "convergence issue", "limits"
)
def _converges_worse(results: Results) -> list[Part]:
    parts = []
    for label, cap in (("step size jδ", "-lr_cap=inf"), ("at most 1", ""), ("step size δ", "-lr_cap=0.1")):
        usual = accuracy_at(results, f"lesson-mnist{'' if cap == '-lr_cap=inf' else cap}", 6000.0)
        least = per_seed(
            results,
            f"lesson-mnist-deadline_s=0.1-ensure_first_tier=false{cap}",
            lambda run: 0.0 if run.stopped else float(run.curve["accuracy"].tail(3).mean()),
        )
        parts.append(Part(f"{label}: accuracy at τ = 20 less at 0.1", usual - least, above(), "points"))
    return parts


@claim(
    "asynchronous-communication",
    "Asynchronous FL costs more communication: uploads, and bytes with them, to a target",
    "higher cost",
    "limits",
    "fig8",
)
def _communication(results: Results) -> list[Part]:
    parts = []
    for tau in ("0.1", "1", "5"):
        series, target = f"lesson-mnist-deadline_s={tau}-ensure_first_tier=false-lr_cap=0.1", 0.8
        label = f"MNIST, step size δ: uploads of τ = {tau} to {target:.0%} over those of 20"
        parts.append(longer(results, label, series, "lesson-mnist-lr_cap=0.1", target, "uploads"))
    for beta in ("0.1", "1"):
        target = common_target(results, [_deadline(tau, beta) for tau in (10, 60)])
        label = f"CIFAR-10, β = {beta}: uploads of τ = 10 to {target:.0%} over those of 60"
        parts.append(longer(results, label, _deadline(10, beta), _deadline(60, beta), target, "uploads"))
    return parts


def _deadline(tau: int, beta: str) -> str:
    """The series of LESSON on CIFAR-10 with a deadline."""
    return "lesson-cifar10" + ("" if tau == 20 else f"-deadline_s={tau}") + BETAS[beta]

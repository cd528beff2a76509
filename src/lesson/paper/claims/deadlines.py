"""Claims about LESSON's deadline (Fig. 8 and 9) and about its limits τ → 0 and τ → ∞."""

from dataclasses import replace

import numpy as np

from lesson.core.arrays import FloatArray
from lesson.experiments.measures import to_target
from lesson.paper import fleets
from lesson.paper.claims.base import BETAS, CALLED, DEADLINE_ROUNDS, claim, longer, percent
from lesson.paper.items import load_item
from lesson.paper.series import Series, accuracy_at, common_target, last_accuracy, per_seed
from lesson.paper.verdicts import Part, above, near

LIMIT_S = 6000.0


@claim("deadlines-accuracy", "Per round, τ = 60 s is the most accurate at β = 0.1 and at β = 1", "highest", "fig8")
def _deadlines_accuracy(results: Series) -> list[Part]:
    parts = []
    for beta in ("0.1", "1"):
        last = {tau: last_accuracy(results, _deadline(tau, beta), DEADLINE_ROUNDS) for tau in (10, 20, 60)}
        parts += [
            Part.of(f"β = {beta}: τ = 60 s − τ = {tau} s", last[60] - last[tau], above(), "points") for tau in (10, 20)
        ]
    return parts


@claim(
    "deadline-reasons",
    "τ = 60 s is the most accurate because of less staleness and of more clients per round",
    "alleviating stale issue; more clients",
    "reasons",
)
def _reasons(results: Series) -> list[Part]:
    """FedAvg with as many clients per round as LESSON has at τ = 10 s differs from it by staleness alone."""
    stale, few, many = (
        last_accuracy(results, name, DEADLINE_ROUNDS)
        for name in (_deadline(10, "0.1"), "fedavg-cifar10-beta=0.1-clients_per_round=16", _deadline(60, "0.1"))
    )
    return [
        Part.of("staleness: FedAvg with 16 clients per round − τ = 10 s", few - stale, above(), "points"),
        Part.of("clients: τ = 60 s − FedAvg with 16 clients per round", many - few, above(), "points"),
    ]


@claim("deadlines-time", "Over time, τ = 60 s is the slowest at β = 0.1", "slowest", "fig9")
def _deadlines_time(results: Series) -> list[Part]:
    return [_times(results, 60, tau, "0.1") for tau in (10, 20)]


@claim(
    "deadline-tradeoff",
    "A longer τ is more accurate but slower, a shorter one faster but less accurate",
    "trade-off",
    "fig8",
    "fig9",
)
def _tradeoff(results: Series) -> list[Part]:
    parts = []
    for beta in ("0.1", "1"):
        for long, short in ((20, 10), (60, 20)):
            last = [last_accuracy(results, _deadline(tau, beta), DEADLINE_ROUNDS) for tau in (long, short)]
            parts.append(
                Part.of(f"β = {beta}: accuracy, τ = {long} s − τ = {short} s", last[0] - last[1], above(), "points")
            )
            parts.append(_times(results, long, short, beta))
    return parts


@claim("short-deadline-sensitive", "τ = 10 s is the most sensitive to β", "most sensitive", "fig8")
def _sensitive(results: Series) -> list[Part]:
    def loss(tau: int) -> FloatArray:
        even, uneven = (last_accuracy(results, _deadline(tau, beta), DEADLINE_ROUNDS) for beta in ("1", "0.1"))
        return even - uneven

    return [
        Part.of(f"accuracy lost from β = 1 to 0.1, τ = 10 s − τ = {tau} s", loss(10) - loss(tau), above(), "points")
        for tau in (20, 60)
    ]


@claim("spread-grows", "Over time, the three deadlines differ more at β = 1 than at β = 0.1", "grows", "fig9")
def _spread(results: Series) -> list[Part]:
    series = {beta: [_deadline(tau, beta) for tau in (10, 20, 60)] for beta in ("0.1", "1")}
    target = common_target(results, [*series["0.1"], *series["1"]])
    spread = {}
    for beta, names in series.items():
        times_s = np.array([per_seed(results, name, lambda run: to_target(run, target, "time_s")) for name in names])
        times_s[np.isinf(times_s)] = np.nan  # there is no common target
        spread[beta] = times_s.max(axis=0) / times_s.min(axis=0)
    label = f"slowest / fastest time to {percent(target)}, β = 1 − β = 0.1"
    return [Part.of(label, spread["1"] - spread["0.1"], above(), "times")]


@claim("infinite-deadline", "LESSON with τ → ∞ is FedAvg", "acts as FedAvg", "limits", constructed=True)
def _infinite(results: Series) -> list[Part]:
    rounds, columns = 1000, ["round", "time_s", "accuracy"]
    pairs = zip(results["lesson-mnist-deadline_s=inf"], results["fedavg-mnist"], strict=True)
    same = [ours.up_to(rounds)[columns].equals(theirs.up_to(rounds)[columns]) for ours, theirs in pairs]
    return [Part.of("runs with identical rounds, times and accuracies", np.array(same, dtype=float), near(1, 0))]


@claim(
    "zero-deadline",
    "LESSON with τ → 0 has the schedule of asynchronous FL",
    "acts as asynchronous FL",
    "limits",
    constructed=True,
)
def _zero(_: Series) -> list[Part]:
    options = load_item("limits").options
    draws = fleets.towards_zero((0.1,), options["num_draws"], options["until_s"])
    return [
        Part.of("τ = 0.1 s: aggregations of a single update", draws["single_share"].to_numpy(), above(0.5)),
        Part.of(
            "τ = 0.1 s: updates per second, LESSON / asynchronous FL",
            draws["updates_of_async"].to_numpy(),
            near(1, 0.02),
            "times",
        ),
    ]


@claim(
    "asynchronous-diverges", "As τ → 0, the convergence issue of asynchronous FL appears", "convergence issue", "limits"
)
def _converges_worse(results: Series) -> list[Part]:
    """The paper's step size is jδ; the other two are our variants."""
    return [
        Part.of(
            f"MNIST, {label}: accuracy, τ = 20 s − τ = 0.1 s",
            _lost_towards_zero(results, cap),
            above(),
            "points",
            added=added,
        )
        for label, cap, added in (
            ("step size jδ", "-lr_cap=inf", False),
            ("step size jδ, at most 1", "", True),
            ("step size δ", "-lr_cap=0.1", True),
        )
    ]


@claim(
    "asynchronous-cause",
    "Staleness, the issue of asynchronous FL, explains most of what LESSON loses as τ → 0",
    "acts more like asynchronous FL, which has the convergence issue",
    "limits",
)
def _convergence_cause(results: Series) -> list[Part]:
    """With step size δ in every tier, as in asynchronous FL, only staleness is left."""
    share = _lost_towards_zero(results, "-lr_cap=0.1") / _lost_towards_zero(results, "-lr_cap=inf")
    return [Part.of("MNIST: share that is lost with step size δ, too", share, above(0.5))]


def _lost_towards_zero(results: Series, cap: str) -> FloatArray:
    """Return the accuracy that LESSON loses from τ = 20 s to 0.1 s, with this cap of the step size in the series."""
    usual = f"lesson-mnist{cap}" if cap == "-lr_cap=0.1" else "lesson-mnist"  # no step size reaches the cap at 20 s
    at_20 = accuracy_at(results, usual, LIMIT_S)
    return at_20 - accuracy_at(results, f"lesson-mnist-deadline_s=0.1-ensure_first_tier=false{cap}", LIMIT_S)


@claim(
    "asynchronous-communication",
    "Asynchronous FL needs more communication: more uploads, and so more bytes, to a target accuracy",
    "higher cost",
    "limits",
    "fig8",
)
def _communication(results: Series) -> list[Part]:
    """Synchronous and semi-synchronous FL are FedAvg and LESSON; the other checks are our variants of the latter."""
    parts, usual = [], "lesson-mnist-lr_cap=0.1"
    for name in ("lesson", "fedavg"):
        target = common_target(results, ["fedasync-mnist", f"{name}-mnist"])
        label = f"MNIST: uploads to {percent(target)}, FedAsync / {CALLED[name]}"
        parts.append(longer(results, label, "fedasync-mnist", f"{name}-mnist", target, "uploads"))
    shorter = {tau: f"lesson-mnist-deadline_s={tau}-ensure_first_tier=false-lr_cap=0.1" for tau in ("0.1", "1", "5")}
    target = common_target(results, [usual, *shorter.values()])
    for tau, series in shorter.items():
        label = f"MNIST, step size δ: uploads to {percent(target)}, τ = {tau} s / τ = 20 s"
        parts.append(replace(longer(results, label, series, usual, target, "uploads"), added=True))
    for beta in ("0.1", "1"):
        long, short = _deadline(60, beta), _deadline(10, beta)
        target = common_target(results, [long, short])
        label = f"CIFAR-10, β = {beta}: uploads to {percent(target)}, τ = 10 s / τ = 60 s"
        parts.append(replace(longer(results, label, short, long, target, "uploads"), added=True))
    return parts


def _times(results: Series, tau: int, than: int, beta: str) -> Part:
    """Compare how long two deadlines take to the highest target that every run at all three deadlines reaches."""
    target = common_target(results, [_deadline(one, beta) for one in (10, 20, 60)])
    label = f"β = {beta}: time to {percent(target)}, τ = {tau} s / τ = {than} s"
    return longer(results, label, _deadline(tau, beta), _deadline(than, beta), target, "time_s")


def _deadline(tau: int, beta: str) -> str:
    """Return the name of LESSON's series on CIFAR-10 with deadline τ."""
    return "lesson-cifar10" + ("" if tau == 20 else f"-deadline_s={tau}") + BETAS[beta]

"""The numbers in the prose of the docs and of experiments/paper follow from the archived runs and from drawn fleets."""

import csv
import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lesson.core.arrays import FloatArray
from lesson.experiments.folder import StudyFolder
from lesson.experiments.measures import (
    Series,
    accuracy_at,
    by_series,
    half_interval,
    last_accuracy,
    per_seed,
    times_longer,
    to_target,
)
from lesson.experiments.run import Run
from lesson.fleet.fleet import draw_fleet
from lesson.paper import fleets
from lesson.paper.claims.accuracies import SIMILAR, SIMILAR_ROUNDS
from lesson.paper.claims.base import BETAS, ROUNDS, slower
from lesson.paper.duration import estimated_minutes, missing_runs
from lesson.paper.items import ON_REQUEST, load_item, select_items, wanted_runs
from lesson.paper.scale import FULL, Scale
from lesson.settings.settings import Settings

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "experiments" / "paper" / "results"
PAGE, README = ROOT / "docs" / "explanation" / "reproduction.md", ROOT / "experiments" / "paper" / "README.md"
GENERATED = re.compile(r"<!-- generated.*?<!-- end -->|```.*?```", re.DOTALL)
IN_95_OF_100 = 1.96 * math.sqrt(2)
"""Standard deviations by which two runs that differ only in their seed differ at most, in 95 of 100 cases."""


@pytest.fixture(scope="module")
def runs() -> Series:
    return by_series(StudyFolder(RESULTS).runs().values())


def prose(path: Path) -> str:
    """The text of a page on one line, without generated parts and code."""
    return " ".join(GENERATED.sub("", path.read_text(encoding="utf-8")).split())


def interval(values: FloatArray, digits: int) -> str:
    return f"{abs(values.mean()):.{digits}f} ± {half_interval(values):.{digits}f}"


def ends(values: FloatArray) -> str:
    low, high = values.mean() - half_interval(values), values.mean() + half_interval(values)
    return f"({low:.2f} to {high:.2f})"


def ratio(runs: Series, other: str, suffix: str, column: str = "time_s") -> str:
    return interval(slower(runs, other, suffix, "", column=column).values, 2)


def points(runs: Series, one: str, other: str, suffix: str) -> FloatArray:
    first, second = (last_accuracy(runs, f"{name}-{suffix}", ROUNDS) for name in (one, other))
    return 100 * (first - second)


def at_each_beta(number: Callable[[str], str]) -> str:
    low, middle, high = (number(f"cifar10{suffix}") for suffix in BETAS.values())
    return f"{low}, {middle} and {high}"


def to_level(runs: Series, suffix: str, target: float) -> FloatArray:
    return times_longer(runs, f"fedcs-{suffix}", f"lesson-{suffix}", target, "time_s", ROUNDS)[0]


def round_s(preset: str, strategy: str) -> str:
    draws = fleets.round_lengths(**load_item("table2").options)
    return interval(draws[(draws["scenario"] == preset) & (draws["strategy"] == strategy)]["round_s"].to_numpy(), 1)


def literal(runs: Series, dataset: str, target: float) -> FloatArray:
    """FedAvg's time over that of LESSON with rounds that wait for the deadline."""
    lesson = f"lesson-{dataset}-printed-late=drop-close_early=false"
    return times_longer(runs, f"fedavg-{dataset}-printed", lesson, target, "time_s")[0]


def scaling_gain(runs: Series, suffix: str) -> str:
    """By how many points jδ is more accurate than δ."""
    usual, capped = (last_accuracy(runs, f"lesson-cifar10{cap}{suffix}", ROUNDS) for cap in ("", "-lr_cap=0.1"))
    return interval(100 * (usual - capped), 1)


def overfit(run: Run) -> float:
    looks = run.clients[run.clients["round"] <= ROUNDS]
    return float((looks["accuracy_tier1"] - looks["accuracy_others"]).tail(3).mean())


def page_facts(runs: Series) -> list[str]:
    fits = [100 * per_seed(runs, f"fedcs-cifar10{suffix}", overfit).mean() for suffix in BETAS.values()]
    mnist = points(runs, "lesson", "fedcs", "mnist")
    fedcs = slower(runs, "fedcs", "cifar10", "")
    gains = 100 * (
        last_accuracy(runs, "fedcs-cifar10-beta=10", ROUNDS) - last_accuracy(runs, "fedcs-cifar10-beta=0.1", ROUNDS)
    )
    tier_1 = fleets.latency_summary().groupby("scenario")["tier_1_share"].mean()["printed"]
    in_tier_1 = np.mean(
        [np.all(draw_fleet(Settings(preset="printed"), seed=draw).latency_s <= 20) for draw in range(200)]
    )
    slowest = [draw_fleet(Settings(), seed=seed).latency_s.max() for seed in range(200)]
    levels = (("mnist", 0.7), ("mnist", 0.9), ("cifar10-beta=10", 0.5), ("cifar10", 0.5))
    early = {level: to_level(runs, *level) for level in levels}
    lesson_s = per_seed(runs, "lesson-cifar10-beta=10", lambda run: to_target(run, 0.7, "time_s", ROUNDS))
    bounds = slower(runs, "fedcs", "cifar10-beta=10", "").values
    losses = per_seed(
        runs,
        "fedcs-cifar10-beta=0.1",
        lambda run: float(run.clients[run.clients["round"] <= ROUNDS]["global_loss"].tail(3).mean()),
    )
    lowest = per_seed(
        runs,
        "fedcs-cifar10-beta=0.1",
        lambda run: float(run.clients[run.clients["round"] <= ROUNDS]["global_loss"].rolling(3).mean().min()),
    )
    waits = fleets.towards_zero((0.1,), 10, 480.0).mean()
    small = "lesson-mnist-deadline_s=0.1-ensure_first_tier=false-lr_cap=0.1"
    behind = 100 * (accuracy_at(runs, "lesson-mnist-lr_cap=0.1", 6000.0) - accuracy_at(runs, small, 6000.0))
    filled, empty = (
        last_accuracy(runs, f"lesson-cifar10-deadline_s=10{name}", 4000) for name in ("", "-ensure_first_tier=false")
    )
    words = {2: "two", 5: "five"}
    diverged = sum(bool(run.diverged) for run in runs["lesson-mnist-local_epochs=1"])
    above_fedcs, below_fedavg = (
        at_each_beta(lambda name, pair=pair: interval(points(runs, *pair, name), 1))
        for pair in (("lesson", "fedcs"), ("fedavg", "lesson"))
    )
    marks = zip(fedcs.values, fedcs.censored, strict=True)
    to_60 = [f"{'> ' * bool(bound)}{value:.2f}" for value, bound in marks]
    return [
        f"takes {at_each_beta(lambda name: ratio(runs, 'fedavg', name))} times LESSON's time on CIFAR-10 at β = 0.1, 1",
        f"and {ratio(runs, 'fedavg', 'mnist')} times on MNIST",
        f"by {above_fedcs} points at β = 0.1, 1 and 10. "
        f"FedCS fits the data of its own clients {min(fits):.0f} to {max(fits):.0f} points better",
        f"the lead, {interval(mnist, 1)} points, excludes 0 by {mnist.mean() - half_interval(mnist):.1f} points",
        f"by {below_fedavg} points at β = 0.1, 1 and 10. Whether",
        f"FedAvg needs {ratio(runs, 'fedavg', 'cifar10', 'round')} times LESSON's rounds to 60 %",
        f"the ratios are {', '.join(to_60[:-1])} and {to_60[-1]}.",
        f"FedCS takes {ratio(runs, 'fedcs', 'mnist')} times LESSON's time. At β = 0.1",
        f"it needs {interval(early['mnist', 0.7], 2)} times LESSON's time to 70 %. The other intervals include 1: "
        "it needs "
        f"{interval(early['mnist', 0.9], 2)} times {ends(early['mnist', 0.9])} to 90 % on MNIST, "
        f"{interval(early['cifar10-beta=10', 0.5], 2)} times {ends(early['cifar10-beta=10', 0.5])} to 50 % on "
        f"CIFAR-10 at β = 10, and {interval(early['cifar10', 0.5], 2)} times {ends(early['cifar10', 0.5])} at β = 1",
        f"it gains {interval(gains, 1)} points from β = 0.1 to 10",
        f"LESSON ends {at_each_beta(lambda name: scaling_gain(runs, name.removeprefix('cifar10')))} points higher",
        f"{tier_1:.1%} of clients".replace("%", " %"),
        f"a round of FedAvg takes {round_s('printed', 'fedavg')} s instead of 68 s",
        f"in {in_tier_1:.0%} of 200 draws".replace("%", " %"),
        f"takes {round_s('printed', 'lesson, close_early = false')[:4]} s, as Table II says, and not "
        f"{round_s('printed', 'lesson')} s. FedAvg's round remains at {round_s('printed', 'fedavg')} s",
        f"LESSON's rounds take {round_s('printed', 'lesson')} s on average",
        f"FedAvg takes {interval(literal(runs, 'cifar10', 0.6), 2)} times LESSON's time to 60 % on CIFAR-10 and "
        f"{interval(literal(runs, 'mnist', 0.95), 2)} times to 95 % on MNIST",
        f"takes {np.mean(slowest[:5]):.1f} s on average, against {np.mean(slowest):.1f} s over 200 draws",
        f"rounds are {np.mean(slowest[:5]) / np.mean(slowest) - 1:.0%} longer".replace("%", " %"),
        f"after {lesson_s.min():,.0f} to {lesson_s.max():,.0f} s and runs end at 100,000 s, so no ratio can exceed "
        f"{bounds.max():.2f}",
        f"ours by {interval(mnist, 1)}",
        f"in {words[int(np.sum(losses > math.log(10)))]} of five seeds, and at "
        f"{interval(losses / lowest, 2)} times its lowest",
        f"an update waits {waits['wait_s']:.2f} s",
        f"are {interval(behind, 1)} points behind τ = 20 s after 6,000 s",
        f"LESSON at τ = 10 s is {interval(100 * (filled - empty), 1)} points lower after 4,000 rounds",
        f"however, {words[diverged]} of five runs diverge",
    ]


def readme_facts(runs: Series) -> list[str]:
    def gap(one: str, other: str, suffix: str) -> str:
        return interval(points(runs, one, other, suffix), 1)

    return [
        f"FedAvg takes {ratio(runs, 'fedavg', 'cifar10')} times LESSON's time to 60 % on CIFAR-10 and "
        f"{ratio(runs, 'fedavg', 'mnist')} times its time to 95 % on MNIST",
        f"It ends {gap('fedavg', 'lesson', 'cifar10-beta=0.1')} points below FedAvg and "
        f"{gap('lesson', 'fedcs', 'cifar10-beta=0.1')} points above FedCS at β = 0.1; at β = 1, it ends "
        f"{gap('fedavg', 'lesson', 'cifar10')} points below FedAvg and "
        f"{gap('lesson', 'fedcs', 'cifar10')} above FedCS. "
        f"Whether {abs(points(runs, 'fedavg', 'lesson', 'cifar10').mean()):.1f} points",
        f"it takes {ratio(runs, 'fedcs', 'mnist')} times LESSON's time to 95 %",
        f"LESSON ends {scaling_gain(runs, '')} points higher on CIFAR-10",
        f"A round of FedAvg takes {round_s('printed', 'fedavg')} s with them, and "
        f"{round_s('released', 'fedavg')} s with",
    ]


@pytest.mark.parametrize(("path", "facts"), [(PAGE, page_facts), (README, readme_facts)], ids=["docs", "readme"])
def test_the_numbers_in_the_prose_follow_from_the_runs(
    path: Path, facts: Callable[[Series], list[str]], runs: Series
) -> None:
    """Every number with an interval must be part of a sentence that is checked here."""
    text = prose(path)
    for fact in facts(runs):
        assert fact in text, fact
        text = text.replace(fact, "")
    assert "±" not in text.replace("Numbers with ±", "").replace("the mean ± 95 %", ""), re.findall(".{60}±.{20}", text)


def test_margins_are_the_differences_between_seeds_of_fedavg(runs: Series) -> None:
    text = prose(PAGE)
    spreads = [last_accuracy(runs, f"fedavg-cifar10{suffix}", ROUNDS).std(ddof=1) for suffix in BETAS.values()]
    cifar10 = IN_95_OF_100 * math.sqrt(np.mean(np.square(spreads)))
    mnist = IN_95_OF_100 * last_accuracy(runs, "fedavg-mnist", ROUNDS).std(ddof=1)
    assert (
        f"This is {100 * cifar10:.1f} points on CIFAR-10 (over the three β) and {100 * mnist:.1f} points on MNIST"
        in text
    )
    assert {"cifar10": round(cifar10, 2), "mnist": round(mnist, 3)} == SIMILAR
    shares = []
    for name, target in (("cifar10", 0.6), ("mnist", 0.95)):
        rounds = per_seed(runs, f"fedavg-{name}", lambda run, goal=target: to_target(run, goal, "round", ROUNDS))
        shares.append(IN_95_OF_100 * rounds.std(ddof=1) / rounds.mean())
    assert f"differ by {shares[0]:.0%} on CIFAR-10 and by {shares[1]:.0%} on MNIST".replace("%", " %") in text
    assert min(shares) < SIMILAR_ROUNDS < max(shares)


def test_who_is_faster_in_how_many_seeds(runs: Series) -> None:
    """The ratios to 60 % on CIFAR-10, to 50 % at β = 0.1, and with rounds that wait for the deadline."""
    part = slower(runs, "fedcs", "cifar10", "")
    assert part.censored.tolist() == [False, True, False, False, False]
    assert (part.values < 1).sum() == 2
    assert np.all(to_level(runs, "cifar10-beta=0.1", 0.5) > 1)
    assert slower(runs, "fedcs", "cifar10-beta=0.1", "").censored.all()
    for dataset, target in (("cifar10", 0.6), ("mnist", 0.95)):
        assert [ratio < 1 for ratio in literal(runs, dataset, target)] == [True, False, True, True, True]
    all_in_tier_1 = [np.all(draw_fleet(Settings(preset="printed"), seed=seed).latency_s <= 20) for seed in range(5)]
    assert all_in_tier_1 == [True, False, True, True, True]


def test_statements_about_mnist(runs: Series) -> None:
    """The gap to FedCS at each evaluation, and evaluations below 60 % after round 1,000."""
    curves = {
        name: [run.up_to(ROUNDS).set_index("round")["accuracy"] for run in runs[f"{name}-mnist"]]
        for name in ("lesson", "fedavg", "fedcs")
    }
    gaps = pd.concat([ours - theirs for ours, theirs in zip(curves["lesson"], curves["fedcs"], strict=True)], axis=1)
    median = gaps.median(axis=1)
    assert len(median) == 500
    assert median.index[median > 0.05].tolist() == [20]
    assert all(min(curve[curve.index > 1000].min() for curve in found) < 0.6 for found in curves.values())


def test_shares_of_evaluations_at_the_top_of_the_sawtooth() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for interval_s, name in ((200, " (MNIST)"), (500, " (CIFAR-10)"), (460, ""), (430, "")):
        shares = []
        for deadline_s in (10, 20, 60):
            rounds = -(-interval_s * np.arange(1, 2521) // deadline_s)
            shares.append(f"{np.mean(rounds % 2 == 0):.0%}".replace("%", " %"))
        assert f"| {interval_s} s{name} | {' | '.join(shares)} |" in text
    assert all(math.gcd(43, tier) == 1 for tier in range(2, 43))


def test_what_has_not_been_run_is_listed_with_its_cost() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for seeds in (10, 20):
        wanted = wanted_runs(select_items([]), Scale(seeds=seeds, eval_jitter=1.0))
        command = f"`lesson reproduce --seeds {seeds} --eval-jitter 1 --out runs/paper-{seeds}`"
        assert f"| {command} | {len(wanted):,} | {estimated_minutes(wanted.values()):.0f} |" in text
    for name in ON_REQUEST:
        command = f"`lesson reproduce {name} --out experiments/paper/results`"
        if (RESULTS / f"{name}.toml").exists():
            assert command not in text
            continue
        missing = missing_runs(load_item(name), select_items([]), FULL)
        cost = f"{len(missing)} | {estimated_minutes(missing.values()):.1f}"
        assert f"| {command} | {cost} |" in text


def test_statements_about_the_released_results(runs: Series) -> None:
    text = prose(PAGE)
    off = {}
    for row in load_item("authors").rows:
        low, high = row["released"]
        ours = last_accuracy(runs, row["series"], row["rounds"]).mean()
        off[row["label"]] = 100 * (ours - high if ours > high else min(ours - low, 0))
    short = {label: value for label, value in off.items() if "CIFAR-10" in label and "τ" not in label}
    assert len(short) == 9
    assert min(short.values()) > 0
    assert f"all nine accuracies are within {max(short.values()):.1f} points of the released ones" in text
    long = [value for label, value in off.items() if "τ" in label]
    above = [value for value in long if value > 0]
    assert (len(above), len(long)) == (5, 6)
    assert f"are {min(above):.0f} to {max(above):.0f} points above the released range in five of six rows" in text
    rows = [row for row in load_item("authors").rows if row["label"] in short and "FedCS" not in row["label"]]
    low = [
        100 * (row["released"][0] - last_accuracy(runs, f"{row['series']}-learning_rate=0.02", ROUNDS).mean())
        for row in rows
    ]
    assert f"LESSON and FedAvg are {math.floor(min(low))} to {max(low):.0f} points too low" in text
    similar = {row["label"]: row["released"][0] for row in load_item("authors").rows}
    apart = 100 * (similar["CIFAR-10, β = 1, FedAvg"] - similar["CIFAR-10, β = 1, LESSON"])
    assert f"the authors' own results differ by {apart:.1f} points" in text
    lead = 100 * (similar["MNIST, β = 1, LESSON"] - similar["MNIST, β = 1, FedCS"])
    assert f"released results of LESSON and FedCS differ by {lead:.1f} points" in text


def test_statements_about_choices(runs: Series) -> None:
    text = prose(PAGE)
    changes = [
        abs(
            last_accuracy(runs, f"{name}-cifar10{end}", 2000).mean()
            - last_accuracy(runs, f"{name}-cifar10", 2000).mean()
        )
        for name in ("lesson", "fedavg", "fedcs")
        for end in ("-weighting=samples", "-split=dirichlet-per-client")
    ]
    assert max(changes) < 0.01
    assert "change no accuracy by more than 1.0 points" in text
    latencies = fleets.what_if().groupby("change")[["slowest_s", "median_s", "tier_1_share"]].mean()
    hours, slowest = latencies / 3600, latencies["slowest_s"]
    for said in (
        f"the median client takes {hours.loc['path loss without log10', 'median_s']:.1f} hours",
        f"the slowest client takes {slowest['compute time charged for 1000 samples']:,.0f} s instead of 68 s",
        f"with 10⁵, {latencies.loc['CPU cycles U(3, 5)·10^5', 'tier_1_share']:.0%}".replace("%", " %"),
        f"68 s to {latencies.loc['power 1 W', 'slowest_s']:.0f} s (power) or "
        f"{latencies.loc['noise -94 dBm', 'slowest_s']:.0f} s (noise)",
        f"with 36.6 Mbit, the slowest client takes {hours.loc['model size 36.6 Mbit', 'slowest_s']:.1f} hours",
    ):
        assert said in text, said
    nobody = fleets.latency_summary().groupby("scenario")["nobody_within_10s"].mean()["released"]
    assert f"happens in {nobody:.0%} of draws".replace("%", " %") in text
    uploads = [
        times_longer(
            runs,
            f"lesson-mnist-deadline_s={tau}-ensure_first_tier=false-lr_cap=0.1",
            "lesson-mnist-lr_cap=0.1",
            0.9,
            "uploads",
        )[0].mean()
        for tau in ("0.1", "1")
    ]
    assert f"τ = 0.1 and 1 s need {uploads[0]:.1f} and {uploads[1]:.1f} times the uploads of τ = 20 s" in text


def test_statements_about_verdicts() -> None:
    """What the page says about checks, in the order of its summary."""
    claims = {claim["id"]: claim for claim in json.loads((RESULTS / "claims.json").read_text(encoding="utf-8"))}
    outcomes = {name: [part["outcome"] for part in claim["parts"]] for name, claim in claims.items()}
    assert claims["over-time"]["verdict"] == claims["deadlines-accuracy"]["verdict"] == "holds"
    for name in ("over-time-fedcs", "short-deadline-sensitive", "spread-grows", "over-time-printed"):
        assert claims[name]["verdict"] == "inconclusive"
    assert outcomes["gap-shrinks"] == ["inconclusive", "fails"]
    assert [part["outcome"] for part in claims["deadline-tradeoff"]["parts"] if "time" in part["label"]] == [
        "inconclusive",  # β = 0.1: 20 s against 10 s, then 60 s against 20 s
        "holds",
        "inconclusive",
        "holds",
    ]
    assert outcomes["asynchronous-communication"] == ["holds"] * 2 + ["inconclusive"] * 3
    rows = list(csv.DictReader((RESULTS / "margins.csv").read_text(encoding="utf-8").splitlines()))
    by_margin = {row["margin (points)"]: list(row.values())[2:] for row in rows}
    assert {margin: found[:2] for margin, found in by_margin.items() if float(margin) >= 1} == {
        "1": ["fails"] * 2,
        "2": ["inconclusive"] * 2,
        "3": ["inconclusive"] * 2,
        "5": ["inconclusive"] * 2,
        "7": ["holds"] * 2,
    }

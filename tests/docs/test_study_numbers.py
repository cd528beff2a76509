"""The numbers in the prose of the pages about studies follow from the archived runs.

Every row and phrase below is computed and must be on its page, so a page cannot quote a number that no run supports.
"""

import functools
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from lesson import load
from lesson.clock.faults import corrupting_clients
from lesson.experiments.run import Run
from lesson.experiments.tuned.measures import COLLAPSED, by_seed, value_names
from lesson.experiments.tuned.pairs import Paired, paired_gain, paired_ratio
from lesson.experiments.tuned.study import TunedStudy
from lesson.fleet.fleet import Fleet, draw_fleet
from lesson.fleet.tiers import assign_tiers
from lesson.report.tuned.tables import at_ends

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
FROM_LESSON = "fedbuff fedasync safa lesson-memory lesson-adaptive fedat fedcs semisync-steps tifl fedcs-greedy fedavg"
GUARDS = {
    "": "no guard",
    ", clipped": "`clip`",
    ", rejected": "`reject`",
    ", median": "`median`",
    ", trimmed": "`trim`",
}
AT_ONE = {", clipped at 1": "`clip` at 1"}
FIRST, SECOND = "faults/results/mnist", "faults/results/extended"


@functools.cache
def study(name: str) -> TunedStudy:
    loaded = load(ROOT / "experiments" / name)
    assert isinstance(loaded, TunedStudy)
    return loaded


def page(name: str) -> str:
    """Return the text of a page with single spaces, so that phrases may be wrapped."""
    return " ".join((ROOT / name).read_text().split())


def ratio(paired: Paired) -> str:
    return f"{paired.mean:.2f} ± {paired.half:.2f}"


def points(paired: Paired) -> str:
    """Return a difference in points with a minus sign, or how many pairs are left if there is no interval."""
    if not np.isfinite(paired.half):
        return f"{len(paired.values)} of 5 pairs"
    return f"{100 * paired.mean:+.1f} ± {100 * paired.half:.1f}".replace("-", "−")


def difference(gain: Paired) -> str:
    """Return a difference in points, its verdict, and how many pairs are left if a run has collapsed."""
    pairs = f", {len(gain.values)} pairs" if 3 <= len(gain.values) < 5 else ""
    return f"{points(gain)} ({gain.verdict}{pairs})"


def accuracy(name: str, entry: str, beta: float) -> str:
    """Return the mean accuracy of the runs that have not collapsed, and how many have."""
    [case] = [one for one in study(name).design.cases if (one.entry.name, one.beta) == (entry, beta)]
    rows = by_seed(case, study(name).done)
    lost, values = int(rows[COLLAPSED].sum()), rows[value_names(case.rules)[-1]][~rows[COLLAPSED]].to_numpy()
    paired = Paired(values, 0.0, 0.0)
    mean = f"{100 * paired.mean:.1f} ± {100 * paired.half:.1f}" if len(values) >= 3 else f"{100 * paired.mean:.1f}"
    count = f"{lost} of {len(rows)}"
    return count if lost == len(rows) else f"{mean}, {count}" if lost else mean


def from_lesson() -> Iterable[str]:
    """Yield the rows that compare strategies without a server optimizer with LESSON."""
    one = study("strategies/results")
    for name in FROM_LESSON.split():
        times = [paired_ratio(one, name, "lesson", beta, "time_to_0.6") for beta in (0.1, 1.0)]
        gains = [paired_gain(one, name, "lesson", beta) for beta in (0.1, 1.0)]
        shown = [ratio(time) if len(time.values) == 5 else f"{len(time.values)} of 5 pairs" for time in times]
        told = [difference(gain) for gain in gains]
        said = [f"{text} ({time.verdict})" if "±" in text else text for text, time in zip(shown, times, strict=True)]
        yield f"| `{name}` | {' | '.join([*said, *told])} |"


def with_adam() -> Iterable[str]:
    """Yield the rows that compare `lesson-filled` with the others, all with Adam."""
    one = study("strategies/results")
    for other in ("fedavg+adam", "fedcs+adam", "lesson+adam"):
        for what, column in (("time", "time_to_0.7"), ("energy", "energy_to_0.7")):
            both = [paired_ratio(one, "lesson-filled+adam", other, beta, column) for beta in (0.1, 1.0)]
            cells = " | ".join(f"{ratio(each)} ({each.verdict})" for each in both)
            yield f"| {what} to 70 %, relative to `{other.replace('+adam', '')}` | {cells} |"
        gains = [paired_gain(one, "lesson-filled+adam", other, beta) for beta in (0.1, 1.0)]
        cells = " | ".join(map(difference, gains))
        yield f"| accuracy at 100,000 s minus that of `{other.replace('+adam', '')}`, points | {cells} |"


def adaptive() -> Iterable[str]:
    """Yield the rows that compare the adaptive deadline with fixed ones."""
    one, name = study("strategies/results"), "lesson-adaptive, δ=0.1"
    for tau in (10, 15, 20, 30, 40, 60):
        other, cells = f"lesson τ={tau}", []
        for beta in (0.1, 1.0):
            time, gain = paired_ratio(one, name, other, beta, "time_to_0.6"), paired_gain(one, name, other, beta)
            cells.append(
                f"{ratio(time)} ({time.verdict})" if len(time.values) == 5 else f"{len(time.values)} of 5 pairs"
            )
            cells.append(difference(gain))
        yield f"| {tau} s | {' | '.join(cells)} |"


def dropout() -> Iterable[str]:
    """Yield the rows about disconnections: accuracy without them, and differences from it."""
    for beta in (0.1, 1.0):
        for name in ("lesson", "fedbuff", "fedcs", "fedavg"):
            where, none = SECOND if name == "fedbuff" else FIRST, f"{name}, 0 % dropout"
            gains = [paired_gain(study(where), f"{name}, {share} % dropout", none, beta) for share in (10, 20, 40)]
            yield f"| `{name}` | {beta:g} | {' | '.join([accuracy(where, none, beta), *map(difference, gains)])} |"


def broken() -> Iterable[str]:
    """Yield the rows about broken clients with the default guards."""
    for beta in (0.1, 1.0):
        for name in ("lesson", "fedbuff", "fedcs", "fedavg"):
            one, none = study(SECOND if name == "fedbuff" else FIRST), f"{name}, guarded, 0 % broken"
            gains = [paired_gain(one, f"{name}, guarded, {share} % broken", none, beta) for share in (10, 20, 30)]
            yield f"| `{name}` | {beta:g} | {' | '.join(map(difference, gains))} |"


def hostile() -> Iterable[str]:
    """Yield the rows about hostile clients and LESSON."""
    levels = ["0 % flipped", *(f"{share} % {kind}" for kind in ("flipped", "boosted") for share in (10, 20, 30))]
    for beta in (0.1, 1.0):
        for guard, told in (GUARDS | AT_ONE).items():
            where = SECOND if guard in AT_ONE else FIRST
            cells = " | ".join(accuracy(where, f"lesson{guard}, {level}", beta) for level in levels)
            yield f"| {told} | {beta:g} | {cells} |"


def hidden() -> Iterable[str]:
    """Yield the rows about hidden attackers and flipped labels."""
    levels = ("none hidden", "10 %, ×2.9", "30 %, ×2", "30 %, ×2.9", "30 %, labels")
    for beta in (0.1, 1.0):
        for guard, told in (GUARDS | AT_ONE).items():
            cells = " | ".join(accuracy(SECOND, f"lesson{guard}, {level}", beta) for level in levels)
            yield f"| {told} | {beta:g} | {cells} |"


CONDITIONS = {
    "shadowing 8 dB": ("8 dB", "0 dB"),
    "Rayleigh, 10 s blocks": ("every 10 s", "no fading"),
    "10 to 20 m/s": ("10 to 20 m/s", "static"),
    "estimate error σ = 0.5": ("σ = 0.5", "σ = 0"),
}


def radio(dataset: str) -> Iterable[str]:
    """Yield the rows about channels: accuracy on constant channels, and differences from it."""
    one = study(f"radio/results/{dataset}")
    for name in ("lesson", "lesson-adaptive", "fedbuff", "fedcs", "fedcs, no refresh", "fedavg"):
        cells = [accuracy(f"radio/results/{dataset}", f"{name}, no fading", 0.1)]
        for level, none in CONDITIONS.values():
            if f"{name}, {level}" not in one.design.by_name:
                cells.append("not run")
                continue
            gain = paired_gain(one, f"{name}, {level}", f"{name}, {none}", 0.1)
            lost = 5 - len(gain.values)
            cells.append(difference(gain) if lost < 3 else f"{lost} of 5 collapsed")
        strategy, _, more = name.partition(", ")
        yield f"| `{strategy}`{', ' + more if more else ''} | {' | '.join(cells)} |"


TABLES: dict[str, tuple[str, list[Callable[[], Iterable[str]]]]] = {
    "comparison": (("docs/explanation/comparison.md", [from_lesson, with_adam, adaptive])),
    "faults": (("docs/explanation/faults.md", [dropout, broken, hostile, hidden])),
    "radio": (("docs/explanation/radio.md", [functools.partial(radio, "mnist"), functools.partial(radio, "cifar10")])),
}


@pytest.mark.parametrize("name", TABLES)
def test_rows_of_tables_follow_from_the_runs(name: str) -> None:
    path, tables = TABLES[name]
    lines = (ROOT / path).read_text().splitlines()
    missing = [row for rows in tables for row in rows() if row not in lines]
    assert not missing, "\n".join(missing)


def fleets(entry: str) -> list[Fleet]:
    """Return the clients of each seed of an entry."""
    [case] = [one for one in study("strategies/results").design.cases if (one.entry.name, one.beta) == (entry, 1.0)]
    return [draw_fleet(run.settings, seed=run.seed) for run in case.made(study("strategies/results").done)]


def test_what_the_comparison_says_about_tuning() -> None:
    found = at_ends(study("strategies/results"), "training.learning_rate")
    ours = [at_end for (name, _), at_end in found.items() if name.startswith("lesson")]
    rivals = [at_end for (name, _), at_end in found.items() if not name.startswith("lesson") and name != "fedavg"]
    fedavg = [at_end for (name, _), at_end in found.items() if name == "fedavg"]
    assert (sum(ours), len(ours), sum(fedavg), len(fedavg)) == (0, 6, 0, 2)
    said = (
        f"in {sum(rivals)} of {len(rivals)} cases for the other strategies, and in none of the 6 for LESSON's variants"
    )
    assert said in page("docs/explanation/comparison.md")
    assert f"{sum(rivals)} of {len(rivals)} cases" in page("experiments/strategies/README.md")


def test_what_the_comparison_says_about_the_clients_of_lesson_filled() -> None:
    tiers = [assign_tiers(fleet.latency_s, 40.0) for fleet in fleets("lesson τ=40")]
    first = [int((tier == 1).sum()) for tier in tiers]
    fits = [
        np.maximum(1, np.floor((tier * 40.0 - fleet.upload_s) / fleet.compute_s)).mean()
        for tier, fleet in zip(tiers, fleets("lesson τ=40"), strict=True)
    ]
    text = page("docs/explanation/comparison.md")
    assert f"{min(first)} to {max(first)} of the 50 clients are in tier 1" in text
    assert f"{min(fits):.2f} to {max(fits):.2f} minibatches" in text
    for discount in (2.0, 4.0):
        weights = [np.float_power(tier, -discount) for tier in tiers]
        slow = [100 * weight[tier > 1].sum() / weight.sum() for tier, weight in zip(tiers, weights, strict=True)]
        assert f"{min(slow):.1f} to {max(slow):.1f} % with `discount` = {discount:g}" in text


def test_what_the_comparison_says_about_an_empty_first_tier() -> None:
    fastest = [float(fleet.latency_s.min()) for fleet in fleets("lesson τ=10")]
    assert min(fastest) > 10
    said = f"the fastest client needs {min(fastest):.1f} to {max(fastest):.1f} s"
    assert said in page("docs/explanation/comparison.md")


def test_what_the_comparison_says_about_how_long_the_deadline_adapts() -> None:
    """Rounds have equal lengths where the deadline does not change; times are rounded to milliseconds."""
    one, stops, at_limit, finals = study("strategies/results"), [], 0, []
    for case in one.design.cases:
        for run in case.made(one.done) if "adaptive" in case.entry.name else ():
            time_s, rounds = run.curve["time_s"].to_numpy(), run.curve["round"].to_numpy()
            deadlines_s = np.diff(time_s) / np.diff(rounds)
            stops.append(float(time_s[1:][np.abs(deadlines_s / deadlines_s[-1] - 1) > 0.01].max(initial=0)))
            lowest_s = np.quantile(draw_fleet(run.settings, seed=run.seed).latency_s, 0.1)
            at_limit += bool(abs(deadlines_s[-1] / lowest_s - 1) < 1e-3)
            finals.append(float(deadlines_s[-1]))
    assert len(stops) == 20
    assert max(stops) < 10_000
    text = page("docs/explanation/comparison.md")
    assert "In all 20 runs, τ stopped changing before 10,000 of 100,000 s" in text
    assert f"in {at_limit} of them" in text
    assert f"between {min(finals):.0f} and {max(finals):.0f} s" in text


def test_what_the_radio_page_says_about_fedbuffs_concurrency() -> None:
    rows = study("strategies/results").table().set_index(["beta", "entry"])
    tuned = rows.loc[(0.1, "fedbuff"), ["accuracy_at_20000", "accuracy_at_20000_ci95"]] * 100
    text = page("docs/explanation/radio.md")
    radio_said = accuracy("radio/results/cifar10", "fedbuff, no fading", 0.1)
    assert f"{radio_said} % here and {tuned.iloc[0]:.1f} ± {tuned.iloc[1]:.1f} % there" in text


def sides(one: TunedStudy, entry: str, than: str, column: str = "") -> list[str]:
    """Return the ratio, or the difference in points without a column, at both β."""
    if column:
        return [ratio(paired_ratio(one, entry, than, beta, column)) for beta in (0.1, 1.0)]
    return [points(paired_gain(one, entry, than, beta)).removeprefix("+") for beta in (0.1, 1.0)]


def test_phrases_about_strategies() -> None:
    one = study("strategies/results")
    text, short = page("docs/explanation/comparison.md"), page("experiments/strategies/README.md")
    low, high = sides(one, "fedcs+adam", "fedavg+adam", "time_to_0.7")
    assert f"it takes {low} (β = 0.1) and {high} (β = 1) of FedAvg's time" in text
    low, high = sides(one, "safa", "lesson", "time_to_0.6")
    assert f"reaches 60 % in {low} and {high} of LESSON's time" in text
    low, high = sides(one, "lesson", "fedavg")
    assert f"LESSON ends higher than FedAvg, by {low} and {high} points" in text
    assert f"LESSON ends above FedAvg by {low} and {high} points" in short
    fast = [sides(one, name, "lesson", "time_to_0.6") for name in ("fedbuff", "fedasync", "safa")]
    for place, beta in enumerate((0.1, 1)):
        first, second, third = (both[place] for both in fast)
        assert f"{first}, {second} and {third}" in short.replace("of its time at", "at"), beta
    filled = {
        name: sides(one, "lesson-filled+adam", f"{name}+adam", "time_to_0.7") for name in ("fedavg", "lesson", "fedcs")
    }
    assert "takes {} (β = 0.1) and {} (β = 1) of FedAvg's time to 70 %".format(*filled["fedavg"]) in short
    assert "{} and {} of LESSON's".format(*filled["lesson"]) in short
    assert "the ratios {} and {} are undecided".format(*filled["fedcs"]) in short
    energy = sides(one, "lesson-filled+adam", "fedcs+adam", "energy_to_0.7")
    assert "its energy is {} and {} times as high".format(*energy) in short
    uploads = [
        run.summary["uploads"]
        for case in one.design.cases
        if case.entry.name == "fedasync"
        for run in case.made(one.done)
    ]
    assert f"aggregates each of its {round(float(np.mean(uploads)), -3):,.0f} uploads" in text


def test_which_strategies_had_collapsed_runs() -> None:
    rows = study("strategies/results").table()
    found = rows[rows[COLLAPSED] > 0][["entry", "beta", COLLAPSED]].to_numpy().tolist()
    assert found == [["fedcs-greedy", 0.1, 1], ["tifl", 1.0, 1]]


def loss(name: str, entry: str, than: str, beta: float) -> str:
    """Return a loss in points, without a sign."""
    return points(paired_gain(study(name), entry, than, beta)).replace("−", "")


def test_phrases_about_faults() -> None:
    text, short = page("docs/explanation/faults.md"), page("experiments/faults/README.md")
    faults = functools.partial(loss, FIRST)
    gained = faults("fedavg, 40 % dropout", "fedavg, 0 % dropout", 1.0).removeprefix("+")
    assert f"FedAvg gains {gained} points at 40 % and β = 1" in text
    lost = [
        loss(where, f"{name}, 40 % dropout", f"{name}, 0 % dropout", 0.1)
        for name, where in (("lesson", FIRST), ("fedbuff", SECOND), ("fedcs", FIRST))
    ]
    assert "LESSON loses {} points, FedBuff {} and FedCS {}".format(*lost) in short
    broken_loss = faults("fedcs, guarded, 30 % broken", "fedcs, guarded, 0 % broken", 0.1)
    assert f"has a loss: {broken_loss} points at 30 % and β = 0.1" in text
    assert f"only for FedCS, {broken_loss} points" in short
    boosted = [
        points(paired_gain(study(FIRST), "lesson, rejected, 30 % boosted", "lesson, 0 % boosted", beta))
        for beta in (0.1, 1.0)
    ]
    assert "the differences at 30 % are {} (β = 0.1) and {} points (β = 1)".format(*boosted) in text
    for beta, said in ((0.1, "they cost LESSON {} and {} points"), (1.0, "they cost {} and {} points")):
        cost = [faults(f"lesson, {guard}, 0 % flipped", "lesson, 0 % flipped", beta) for guard in ("median", "trimmed")]
        assert said.format(*cost) in text
    flipped = [faults("lesson, rejected, 30 % flipped", "lesson, 0 % flipped", beta) for beta in (0.1, 1.0)]
    assert "`reject`, LESSON loses {} points (β = 0.1) and {} points (β = 1)".format(*flipped) in text
    assert f"LESSON loses {flipped[0]} points with the best guard" in short


def test_counts_of_the_faults_study() -> None:
    rows = study(FIRST).table()
    unguarded = rows[rows["entry"].str.contains("unguarded") & ~rows["entry"].str.contains(" 0 %")]
    assert (unguarded["diverged"].sum(), unguarded["seeds"].sum()) == (114, 120)
    counts = rows.set_index(["entry", "beta"])[COLLAPSED]
    assert [counts["lesson, clipped, 30 % boosted", beta] for beta in (0.1, 1.0)] == [5, 5]
    assert counts["fedcs, 40 % dropout", 0.1] == 1
    later = study(SECOND).table().set_index(["entry", "beta"])[COLLAPSED]
    assert [later["fedbuff, median, 20 % boosted", beta] for beta in (0.1, 1.0)] == [3, 2]
    assert [later["lesson, clipped, 30 %, ×2", beta] for beta in (0.1, 1.0)] == [5, 3]
    assert [later["lesson, rejected, 30 %, ×2", beta] for beta in (0.1, 1.0)] == [1, 0]
    assert not later[later.index.get_level_values("entry").str.startswith("lesson, clipped at 1")].any()
    for name, table in (("lesson", counts), ("fedbuff", later)):
        rejected = [f"{name}, rejected, {share} % boosted" for share in (10, 20, 30)]
        assert not any(table[entry, beta] for entry in rejected for beta in (0.1, 1.0))


def test_phrases_about_hidden_attackers() -> None:
    text, short = page("docs/explanation/faults.md"), page("experiments/faults/README.md")
    one, lost = study(SECOND), functools.partial(loss, SECOND)
    trimmed = [lost("lesson, trimmed, 30 %, ×2", "lesson, none hidden", beta) for beta in (0.1, 1.0)]
    assert "`trim`, still loses {} points at β = 0.1 and {} points at β = 1".format(*trimmed) in text
    assert f"LESSON loses {trimmed[0]} points with the best guard. Clipping" in short
    cost = lost("lesson, trimmed, none hidden", "lesson, none hidden", 0.1)
    assert f"without hostile clients, `trim` loses {cost} points" in text
    for beta in (0.1, 1.0):
        best = paired_gain(one, "lesson, trimmed, 30 %, ×2", "lesson, clipped at 1, 30 %, ×2", beta)
        assert best.verdict == "undecided"
    labels = [
        lost(f"lesson{guard}, 30 %, labels", "lesson, none hidden", beta)
        for guard in ("", ", clipped at 1")
        for beta in (0.1, 1.0)
    ]
    said = "cost LESSON {} (β = 0.1) and {} points (β = 1) without guards, and {} and {} points with `clip` at 1"
    assert said.format(*labels) in text
    helped = [
        paired_gain(one, "lesson, clipped at 1, 30 %, labels", "lesson, 30 %, labels", beta) for beta in (0.1, 1.0)
    ]
    assert [gain.verdict for gain in helped] == ["undecided", "higher"]
    assert f"undecided at β = 0.1 and {points(helped[1]).removeprefix('+')} points at β = 1" in text
    assert f"cost LESSON {labels[0]} points without guards and {labels[2]} with clipping" in short
    more = [lost("lesson, rejected, 30 %, ×2", "lesson, rejected, 30 %, ×2.9", beta) for beta in (0.1, 1.0)]
    assert "by {} points (β = 0.1, 4 pairs) and {} points (β = 1)".format(*more) in text
    for beta in (0.1, 1.0):
        even = paired_gain(one, "lesson, rejected, 30 %, labels", "lesson, 30 %, labels", beta)
        assert even.verdict == "equivalent"
    harm = [paired_gain(one, "lesson, clipped at 1, none hidden", "lesson, none hidden", beta) for beta in (0.1, 1.0)]
    assert [gain.verdict for gain in harm] == ["undecided", "lower"]
    assert "by {} (β = 0.1, undecided) and {} points (β = 1, lower)".format(*map(points, harm)) in text


def test_excluded_and_repeated_runs_of_the_second_faults_study() -> None:
    text, one = page("docs/explanation/faults.md"), study(SECOND)

    def runs(entry: str) -> list[Run]:
        return [run for case in one.design.cases if case.entry.name == entry for run in case.made(one.done)]

    hostile, honest = {}, {}
    for level in ("×2", "×2.9"):
        told = [
            corrupting_clients(run.settings.faults, 50, run.seed)[run.summary["excluded"]]
            for run in runs(f"lesson, rejected, 30 %, {level}")
        ]
        hostile[level], honest[level] = [int(each.sum()) for each in told], sum(int((~each).sum()) for each in told)
    many = hostile["×2.9"]
    said = (
        f"excluded {min(many)} to {max(many)} of the 15 hostile clients per run, but at most {max(hostile['×2'])} at 2"
    )
    assert said in text
    assert honest == {"×2": 0, "×2.9": 1}
    rejected = max(run.summary["rejected"] for run in runs("lesson, rejected, 30 %, labels"))
    assert f"at most {rejected} updates per run are rejected" in text
    done = {run.name: run for case in one.design.cases for run in case.made(one.done)}
    repeated = [run for run in done.values() if "H200" not in run.versions["hardware"]]
    assert (len(done), len(repeated), sum(bool(run.diverged) for run in repeated)) == (1840, 171, 167)
    counts = one.table().set_index(["entry", "beta"])[COLLAPSED]
    told = [counts[f"{name}, clipped at 1, 30 %, ×2", 0.1] for name in ("fedbuff", "fedavg", "fedcs")]
    assert told == [1, 1, 2]


def test_rounds_of_fedavg_are_shorter_with_disconnections() -> None:
    one = study(FIRST)
    counts = {
        case.entry.level: np.mean([run.summary["rounds"] for run in case.made(one.done)])
        for case in one.design.cases
        if (case.entry.line, case.entry.group, case.beta) == ("fedavg", "dropout", 1.0)
    }
    said = f"{counts['0 % dropout']:.0f} rounds without disconnections and {counts['40 % dropout']:.0f} with 40 %"
    assert said in page("docs/explanation/faults.md")


def test_phrases_about_channels() -> None:
    text, short = page("docs/explanation/radio.md"), page("experiments/radio/README.md")
    for dataset, most in (("mnist", "6.8 points on MNIST"), ("cifar10", "13.6 points on CIFAR-10")):
        one = study(f"radio/results/{dataset}")
        gains = [paired_gain(one, f"lesson, {level}", f"lesson, {none}", 0.1) for level, none in CONDITIONS.values()]
        undecided = [gain for gain in gains if gain.verdict == "undecided"]
        assert len(undecided) == (4 if dataset == "mnist" else 3)
        assert f"{100 * max(gain.half - gain.mean for gain in undecided):.1f}" == most.split()[0]
        assert most in text
    error = loss("radio/results/cifar10", "lesson, σ = 0.5", "lesson, σ = 0", 0.1)
    assert f"costs it {error} points on CIFAR-10" in text
    assert f"costs it {error} points" in short
    fading = loss("radio/results/mnist", "fedcs, every 10 s", "fedcs, no fading", 0.1)
    never = loss("radio/results/mnist", "fedcs, no refresh, every 10 s", "fedcs, no refresh, no fading", 0.1)
    assert f"slow fading costs it {fading} points on MNIST" in text
    assert f"Slow fading costs it {fading} points, and {never} if it never refreshes them" in short
    wrong = loss("radio/results/cifar10", "fedcs, σ = 0.5", "fedcs, σ = 0", 0.1)
    assert f"σ = 0.5 costs it {wrong} points on CIFAR-10" in text
    for level, none in CONDITIONS.values():
        gain = paired_gain(study("radio/results/mnist"), f"lesson, {level}", f"lesson, {none}", 0.1)
        assert f"({points(gain)})" in short
    for dataset, number in (("mnist", 3), ("cifar10", 5)):
        rows = study(f"radio/results/{dataset}").table().set_index("entry")
        assert rows.loc["fedavg, 8 dB", COLLAPSED] == number

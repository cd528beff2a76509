"""Tables of docs/explanation/comparison.md and radio.md, from simulations and from the archived runs in experiments/.

`tools/render_docs.py` writes them into the pages.
"""

import functools
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lesson import FedAvg, Settings, draw_fleet, load, simulate
from lesson.core.arrays import FloatArray
from lesson.experiments.measures import Estimate, half_intervals, holm, mean_until, to_target, value_by
from lesson.experiments.run import Run
from lesson.experiments.tuning.study import COLLAPSED, TunedStudy
from lesson.learn.metric import ACCURACY
from lesson.report.results import gain_cell, ratio_cell

EXPERIMENTS = Path(__file__).parent.parent / "experiments"
BETAS = (0.1, 1.0)
FITTED = "lesson-fitted+adam"
RIVALS = {  # entries with Adam that are compared with `lesson-fitted`
    "fitted tier 1+adam": "the same without slow tiers",
    "fedcs+adam": "`fedcs`, τ = 40 s",
    "fedcs τ=30+adam": "`fedcs`, τ = 30 s",
    "lesson+adam": "`lesson`, τ = 40 s",
    "rennala+adam": "`rennala`",
    "fedavg+adam": "`fedavg`",
    "fedasync+adam": "`fedasync`",
    "ca2fl+adam": "`ca2fl`",
    "fedbuff+adam": "`fedbuff`",
    "fadas": "`fadas`",
    "safa+adam": "`safa`",
}
STRATEGIES = (
    *("fedbuff", "fedasync", "safa", "fedat"),
    *("fedcs", "semisync-steps", "tifl", "fedcs-greedy", "fedavg"),
)
CHANNELS = {  # the level of each column and the one it is compared with
    "shadowing 8 dB": ("8 dB", "0 dB"),
    "fading": ("pedestrians", "no fading"),
    "fading in 10 s blocks": ("every 10 s", "no fading"),
    "fading, 10 to 20 m/s": ("10 to 20 m/s", "static"),
    "uploads lost, 1 W": ("lost", "no errors"),
    "outage": ("outage", "all reachable"),
    "estimate error σ = 0.5": ("σ = 0.5", "σ = 0"),
}
RADIO: dict[str, dict[str, Any]] = {
    "as in the paper": {},
    "speed_mps = [1, 15]": {"speed_mps": (1.0, 15.0)},
    "fading = rayleigh": {"fading": "rayleigh"},
    "slowdown = 0.5": {"slowdown": 0.5},
    "download = true": {"download": True},
    "spectrum = equal": {"spectrum": "equal"},
    "spectrum = in-turn": {"spectrum": "in-turn"},
}


def study_table(name: str) -> list[list[str]]:
    """Return the header and the rows of a table."""
    return list(TABLES[name]())


def round_lengths() -> Iterator[list[str]]:
    """Mean length of FedAvg's rounds 26 to 50 over five seeds, with one setting changed at a time."""
    yield ["setting", "length of a round"]
    for name, changes in RADIO.items():
        settings, lengths_s = Settings(**changes), []
        for seed in range(5):
            fleet = draw_fleet(settings, seed=seed)
            records = list(simulate(FedAvg(), fleet, rounds=50, seed=seed, settings=settings))
            lengths_s += [record.end_s - record.start_s for record in records[25:]]
        yield [name, f"{statistics.mean(lengths_s):.1f} s"]


def fitted_over_time() -> Iterator[list[str]]:
    """Mean accuracy over time of `lesson-fitted` with Adam minus that of others, with the words of protocol.md."""
    study = _load("strategies", folder="final")
    entries = {run.labels["entry"] for run in study.runs if run.labels["group"] != "plain"}
    assert entries == {FITTED, *RIVALS}, "p-values are corrected for all comparisons"
    ours, tests = [_over_time(study, FITTED, beta) for beta in BETAS], dict[str, list[Estimate]]()
    for name in RIVALS:
        theirs = [_over_time(study, name, beta) for beta in BETAS]
        means = [pd.concat(parts, axis=1).mean(axis=1) for parts in (ours, theirs)]
        tests[name] = [_paired(*pair) for pair in [*zip(ours, theirs, strict=True), means]]
    p_values = holm([both.p_value(0.0) for *_, both in tests.values()])
    yield ["`lesson-fitted` minus", "seeds", *(f"β = {beta:g}" for beta in BETAS), "both", "corrected p", ""]
    for (name, several), p_value in zip(tests.items(), p_values, strict=True):
        shown, both = "< 0.001" if p_value < 0.001 else f"{p_value:.1g}", several[-1]
        is_small = both.verdict(0.0, margin=0.01) == "equivalent"
        word = ("higher" if both.mean > 0 else "lower") if p_value < 0.05 else "equivalent" if is_small else "undecided"
        yield [RIVALS[name], str(len(both.low)), *(_mean(100 * one.low, "+") for one in several), shown, word]


def fitted_to_target() -> Iterator[list[str]]:
    """Time and energy to 70 %, and the final accuracy, of `lesson-fitted` with Adam relative to other entries."""
    study = _load("strategies", folder="final")
    measures = ("time", "energy", "accuracy")
    yield ["relative to", *(f"{what}, β = {beta:g}" for what in measures for beta in BETAS)]
    for name in RIVALS:
        pairs = [study.compare(FITTED, name, beta) for beta in BETAS]
        ratios = [_ratio(pair[f"{what}_ratio"]) for what in ("time", "energy") for pair in pairs]
        yield [RIVALS[name], *ratios, *(gain_cell(pair[study.gain], ACCURACY, margin=0.01) for pair in pairs)]


def fitted_by_tier() -> Iterator[list[str]]:
    """Accuracy by tier of `lesson-fitted` with Adam minus that without slow tiers."""
    study = _load("strategies", folder="final")
    yield ["", *(f"β = {beta:g}" for beta in BETAS)]
    for place, name in enumerate(("clients in tier 1", "all others")):
        score = functools.partial(_accuracy_in, place)
        pairs = ([_by_seed(study, entry, beta, score) for entry in (FITTED, "fitted tier 1+adam")] for beta in BETAS)
        yield [name, *(gain_cell(_paired(*pair), ACCURACY, margin=0.01) for pair in pairs)]


def _accuracy_in(place: int, run: Run) -> float:
    return float(run.summary["accuracy_by_tier"][place])


def without_optimizer() -> Iterator[list[str]]:
    """Strategies without a server optimizer, relative to LESSON."""
    study = _load("strategies")
    yield ["", *(f"{what}, β = {beta:g}" for what in ("time", "accuracy") for beta in BETAS)]
    for name in STRATEGIES:
        pairs = [study.compare(name, "lesson", beta, target=0.6) for beta in BETAS]
        gains = [_points(pair[study.gain]) for pair in pairs]
        yield [f"`{name}`", *(_ratio(pair["time_ratio"]) for pair in pairs), *gains]


def channels(dataset: str) -> Iterator[list[str]]:
    """Accuracy on constant channels at β = 0.1, and the differences on other channels."""
    study = _load("radio", dataset)
    entries = {run.labels["entry"] for run in study.runs}
    channels = {title: levels for title, levels in CHANNELS.items() if f"lesson, {levels[0]}" in entries}
    yield ["", "constant channels", *channels]
    for name in ("lesson", "lesson, drop", "fedbuff", "fedcs", "fedcs, no refresh", "fedavg"):
        strategy, comma, more = name.partition(",")
        cells = [f"`{strategy}`{comma}{more}", _accuracy(study, f"{name}, no fading")]
        for level, none in channels.values():
            entry, than = f"{name}, {level}", f"{name}, {none}"
            lost = f", {count} of 5 collapsed" if (count := study.collapsed(entry, 0.1)) else ""
            gain = study.compare(entry, than, 0.1)[study.gain] if {entry, than} <= entries else None
            cells.append(f"{_points(gain)}{lost}" if gain else "–")
        yield cells


def _over_time(study: TunedStudy, entry: str, beta: float) -> pd.Series:
    """The mean accuracy over time of each final run of an entry, by seed."""
    return _by_seed(study, entry, beta, lambda run: mean_until(run, study.rules.final_s))


def _by_seed(study: TunedStudy, entry: str, beta: float, measure: Callable[[Run], float]) -> pd.Series:
    """A measure of each final run of an entry, by seed."""
    runs = [run for run in study.runs if (run.labels["entry"], run.settings.data.beta) == (entry, beta)]
    assert len({run.seed for run in runs}) == len(runs) >= 5, f"{entry}: seeds are missing or occur twice"
    return pd.Series({run.seed: measure(run) for run in runs})


def _paired(ours: pd.Series, theirs: pd.Series) -> Estimate:
    """The differences of the seeds that both have."""
    return Estimate.of((ours - theirs).dropna().to_numpy())


def uplink() -> Iterator[list[str]]:
    """Time, energy, traffic and uploads to 80 % with compressed uploads."""
    study = _load("uplink", "mnist")
    yield ["", "time to 80 % (s)", "uploads", "energy (kJ)", "uploaded (MB)", "accuracy at 10,000 s (%)"]
    for strategy in ("lesson", "fedavg", "fedbuff", "fedcs"):
        for level in ("none", "8 bits", "4 bits", "top 1 %"):
            name = f"{strategy}, {level}"
            runs, cells = [run for run in study.runs if run.labels["entry"] == name], [f"`{strategy}`, {level}"]
            for column, unit in (("time_s", 1.0), ("uploads", 1.0), ("energy_j", 1e3), ("bytes_up", 1e6)):
                costs = np.array([to_target(run, 0.8, column) for run in runs]) / unit
                count = np.count_nonzero(np.isfinite(costs))
                cells.append(_mean(costs) if count == len(runs) else f"{count} of {len(runs)} seeds")
            yield [*cells, _mean(np.array([100 * value_by(run, 10_000.0) for run in runs]))]


def _mean(values: FloatArray, sign: str = "") -> str:
    """A mean and half its 95 % confidence interval."""
    half = float(half_intervals(values))
    digits = 1 if half < 10 else 0
    return f"{values.mean():{sign},.{digits}f} ± {half:,.{digits}f}".replace("-", "−")


TABLES: dict[str, Callable[[], Iterator[list[str]]]] = {
    "round_lengths": round_lengths,
    "fitted_over_time": fitted_over_time,
    "fitted_to_target": fitted_to_target,
    "fitted_by_tier": fitted_by_tier,
    "without_optimizer": without_optimizer,
    "channels_mnist": functools.partial(channels, "mnist"),
    "channels_cifar10": functools.partial(channels, "cifar10"),
    "uplink": uplink,
}


@functools.cache
def _load(experiment: str, dataset: str = "", folder: str = "results") -> TunedStudy:
    study = load(EXPERIMENTS / experiment / folder / dataset)
    assert isinstance(study, TunedStudy)
    return study


def _ratio(estimate: Estimate) -> str:
    """A ratio with its verdict; two are equivalent if they differ by at most 10 %."""
    return ratio_cell(estimate, margin=0.1)


def _points(estimate: Estimate) -> str:
    """A difference in points with its verdict; two are equivalent if they differ by at most 2 points."""
    return gain_cell(estimate, ACCURACY, margin=0.02)


def _accuracy(study: TunedStudy, entry: str) -> str:
    """The mean accuracy at β = 0.1 of the runs that have not collapsed, and how many have."""
    [row] = [row for row in study.table().to_dict("records") if (row["entry"], row["beta"]) == (entry, 0.1)]
    mean, half = (100 * row[f"{study.value_names[-1]}{end}"] for end in ("", "_ci95"))
    lost, text = row[COLLAPSED], f"{mean:.1f}" if np.isnan(half) else f"{mean:.1f} ± {half:.1f}"
    count = f"{lost} of {row['seeds']}"
    return count if lost == row["seeds"] else f"{text}, {count}" if lost else text

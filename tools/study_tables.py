"""Tables of docs/explanation/comparison.md and radio.md, from simulations and from the archived runs in experiments/.

`tools/render_docs.py` writes them into the pages.
"""

import functools
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lesson import FedAvg, Settings, draw_fleet, load, simulate
from lesson.core.arrays import FloatArray
from lesson.experiments.measures import Estimate, half_intervals, mean_until, to_target, value_by
from lesson.experiments.tuning.study import COLLAPSED, TunedStudy
from lesson.learn.metric import ACCURACY
from lesson.report.results import gain_cell, ratio_cell

EXPERIMENTS = Path(__file__).parent.parent / "experiments"
BETAS = (0.1, 1.0)
PHASE = ("10 %", "30 %", "50 %", "70 %", "90 %")
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


def with_adam() -> Iterator[list[str]]:
    """`lesson-fitted` and other strategies, all with Adam on the server."""
    study = _load("strategies")
    yield ["`lesson-fitted`", *(f"β = {beta:g}" for beta in BETAS)]
    for name in ("fedavg", "fedcs", "lesson"):
        pairs = [study.compare("lesson-fitted+adam", f"{name}+adam", beta) for beta in BETAS]
        for what in ("time", "energy"):
            yield [f"{what} to 70 %, relative to `{name}`", *(_ratio(pair[f"{what}_ratio"]) for pair in pairs)]
        yield [f"accuracy at 100,000 s minus that of `{name}`, points", *(_points(pair[study.gain]) for pair in pairs)]


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
    yield ["", "constant channels", *CHANNELS]
    for name in ("lesson", "lesson, drop", "fedbuff", "fedcs", "fedcs, no refresh", "fedavg"):
        strategy, comma, more = name.partition(",")
        cells = [f"`{strategy}`{comma}{more}", _accuracy(study, f"{name}, no fading")]
        for level, none in CHANNELS.values():
            entry, than = f"{name}, {level}", f"{name}, {none}"
            lost = f", {count} of 5 collapsed" if (count := study.collapsed(entry, 0.1)) else ""
            gain = study.compare(entry, than, 0.1)[study.gain] if {entry, than} <= entries else None
            cells.append(f"{_points(gain)}{lost}" if gain else "–")
        yield cells


def phase() -> Iterator[list[str]]:
    """Mean accuracy from 0 to 3,000 s on MNIST by the share of uploads in the latency, and differences from FedAvg."""
    study = _load("strategies", folder="phase")
    until_s = study.rules.final_s
    yield ["", *PHASE]
    theirs = {share: _over_time(study, f"fedavg, {share}", 0.1, until_s) for share in PHASE}
    yield ["`fedavg`", *(_mean(100 * values) for values in theirs.values())]
    for name in ("fedcs", "lesson", "lesson-fitted", "fedbuff"):
        ours = {share: _over_time(study, f"{name}, {share}", 0.1, until_s) for share in PHASE}
        yield [f"`{name}`", *(_points(Estimate.of(ours[share] - theirs[share])) for share in PHASE)]


def _over_time(study: TunedStudy, entry: str, beta: float, until_s: float) -> FloatArray:
    """The mean accuracy over time of each final run of an entry, by seed."""
    runs = [run for run in study.runs if (run.labels["entry"], run.settings.data.beta) == (entry, beta)]
    return np.array([mean_until(run, until_s) for run in sorted(runs, key=lambda run: run.seed)])


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


def _mean(values: FloatArray) -> str:
    """A mean and half its 95 % confidence interval."""
    half = float(half_intervals(values))
    digits = 1 if half < 10 else 0
    return f"{values.mean():,.{digits}f} ± {half:,.{digits}f}"


TABLES: dict[str, Callable[[], Iterator[list[str]]]] = {
    "round_lengths": round_lengths,
    "with_adam": with_adam,
    "without_optimizer": without_optimizer,
    "channels_mnist": functools.partial(channels, "mnist"),
    "channels_cifar10": functools.partial(channels, "cifar10"),
    "uplink": uplink,
    "phase": phase,
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

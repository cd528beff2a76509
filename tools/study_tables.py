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
from lesson.experiments.tuned.measures import COLLAPSED, by_seed, value_names
from lesson.experiments.tuned.pairs import Paired, paired_gain, paired_ratio
from lesson.experiments.tuned.study import TunedStudy

EXPERIMENTS = Path(__file__).parent.parent / "experiments"
BETAS = (0.1, 1.0)
STRATEGIES = (
    *("fedbuff", "fedasync", "safa", "fedat"),
    *("fedcs", "semisync-steps", "tifl", "fedcs-greedy", "fedavg"),
)
CHANNELS = {  # the level of each column and the one it is compared with
    "shadowing 8 dB": ("8 dB", "0 dB"),
    "Rayleigh, 10 s blocks": ("every 10 s", "no fading"),
    "10 to 20 m/s": ("10 to 20 m/s", "static"),
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
    """`lesson-filled` and other strategies, all with Adam on the server."""
    study = _load("strategies")
    yield ["`lesson-filled`", *(f"β = {beta:g}" for beta in BETAS)]
    for name in ("fedavg", "fedcs", "lesson"):
        pair = "lesson-filled+adam", f"{name}+adam"
        for what in ("time", "energy"):
            ratios = [_ratio(paired_ratio(study, *pair, beta, f"{what}_to_0.7")) for beta in BETAS]
            yield [f"{what} to 70 %, relative to `{name}`", *ratios]
        gains = [_points(paired_gain(study, *pair, beta)) for beta in BETAS]
        yield [f"accuracy at 100,000 s minus that of `{name}`, points", *gains]


def without_optimizer() -> Iterator[list[str]]:
    """Strategies without a server optimizer, relative to LESSON."""
    study = _load("strategies")
    yield ["", *(f"{what}, β = {beta:g}" for what in ("time", "accuracy") for beta in BETAS)]
    for name in STRATEGIES:
        ratios = [_ratio(paired_ratio(study, name, "lesson", beta, "time_to_0.6")) for beta in BETAS]
        yield [f"`{name}`", *ratios, *(_points(paired_gain(study, name, "lesson", beta)) for beta in BETAS)]


def channels(dataset: str) -> Iterator[list[str]]:
    """Accuracy on constant channels at β = 0.1, and the differences on other channels."""
    study = _load("radio", dataset)
    yield ["", "constant channels", *CHANNELS]
    for name in ("lesson", "fedbuff", "fedcs", "fedcs, no refresh", "fedavg"):
        strategy, comma, more = name.partition(",")
        cells = [f"`{strategy}`{comma}{more}", _accuracy(study, f"{name}, no fading", 0.1)]
        for level, none in CHANNELS.values():
            if f"{name}, {level}" in study.design.by_name:
                gain = paired_gain(study, f"{name}, {level}", f"{name}, {none}", 0.1)
                lost = 5 - len(gain.values)
                cells.append(_points(gain) if lost < 3 else f"{lost} of 5 collapsed")
            else:
                cells.append("not run")
        yield cells


TABLES: dict[str, Callable[[], Iterator[list[str]]]] = {
    "round_lengths": round_lengths,
    "with_adam": with_adam,
    "without_optimizer": without_optimizer,
    "channels_mnist": functools.partial(channels, "mnist"),
    "channels_cifar10": functools.partial(channels, "cifar10"),
}


@functools.cache
def _load(experiment: str, dataset: str = "") -> TunedStudy:
    study = load(EXPERIMENTS / experiment / "results" / dataset)
    assert isinstance(study, TunedStudy)
    return study


def _ratio(paired: Paired) -> str:
    """A ratio with its verdict, or the number of pairs if a run does not reach the target."""
    if len(paired.values) < 5:
        return f"{len(paired.values)} of 5 pairs"
    return f"{paired.mean:.2f} ± {paired.half:.2f} ({paired.verdict})"


def _points(paired: Paired) -> str:
    """A difference in points with its verdict, and the number of pairs if a run has collapsed."""
    pairs = f", {len(paired.values)} pairs" if 3 <= len(paired.values) < 5 else ""
    value = f"{100 * paired.mean:+.1f} ± {100 * paired.half:.1f}".replace("-", "−")
    return f"{value if np.isfinite(paired.half) else f'{len(paired.values)} of 5 pairs'} ({paired.verdict}{pairs})"


def _accuracy(study: TunedStudy, entry: str, beta: float) -> str:
    """The mean accuracy of the runs that have not collapsed, and how many have."""
    [case] = [case for case in study.design.cases if (case.entry.name, case.beta) == (entry, beta)]
    rows = by_seed(case, study.done)
    lost, values = int(rows[COLLAPSED].sum()), rows[value_names(case.rules)[-1]][~rows[COLLAPSED]].to_numpy()
    paired = Paired(values, 0.0, 0.0)
    mean = f"{100 * paired.mean:.1f} ± {100 * paired.half:.1f}" if len(values) >= 3 else f"{100 * paired.mean:.1f}"
    count = f"{lost} of {len(rows)}"
    return count if lost == len(rows) else f"{mean}, {count}" if lost else mean

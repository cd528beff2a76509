"""The summary of a run, computed from its metrics: final accuracy, times to targets, totals."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lesson.fleet.fleet import columns_of, finite_or_none, sample_by_latency
from lesson.learn.build import TrainingRun
from lesson.runs.read_back import each_line
from lesson.settings.settings import Settings

TARGETS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
LAST, IN_A_ROW = 10, 3
MAX_NOTES = 10
ROUNDING = 1e-12
DIVERGED_LOSS = 10 * math.log(10)
"""Loss above which training must have diverged."""
WALL = "wall"
"""Value of `clock` in the summary of a run whose times are measured; the summaries of other runs have no clock."""
VARYING_COUNTS = ("misses", "retiered", "lost")
"""Counts that only runs with varying times have: late updates, tier changes and lost updates."""


def read_metrics(path: Path | str) -> list[dict[str, Any]]:
    """Return the lines of a metrics file; none if there is no such file."""
    return list(each_line(Path(path)))


def summarize(settings: Settings, metrics: Path, accuracy: float, loss: float, stop_reason: str = "") -> dict[str, Any]:
    """Return the summary of a run, given accuracy and loss of its final model, and why it ended early, if it did."""
    lines = list(with_final_score(read_metrics(metrics), {"accuracy": accuracy}))
    scores = [line for line in lines if "accuracy" in line] or [{"accuracy": accuracy, "time_s": 0.0}]
    accuracies, times_s = [line["accuracy"] for line in scores], [line["time_s"] for line in scores]
    last = accuracies[-num_last(len(scores)) :]
    energy = [line["energy_j"] for line in lines]
    uploads = sum(line["uploads"] for line in lines)
    early = "" if stop_reason == "time limit reached" else stop_reason
    ended = [] if not early or any(early in line.get("note", "") for line in lines[-1:]) else [early]
    silent = [] if uploads else ["no update arrived, so the final model is the initial one"]
    return {
        "strategy": settings.strategy.name,
        "dataset": settings.data.dataset,
        "seed": settings.run.seed,
        "device": settings.run.device,
        "rounds": len(lines),
        "time_s": lines[-1]["time_s"] if lines else 0.0,
        "accuracy": accuracy,
        "loss": loss,
        "accuracy_last10": sum(last) / len(last),
        "uploads": uploads,
        "rejected": sum(line.get("rejected", 0) for line in lines),
        "rejected_by": _by_reason(lines),
        "excluded": [client for line in lines for client in line.get("excluded", [])],
        **{name: sum(line[name] for line in lines) for name in VARYING_COUNTS if lines and name in lines[0]},
        "bytes_up": sum(line["bytes_up"] for line in lines),
        "bytes_down": sum(line["bytes_down"] for line in lines),
        "energy_j": None if None in energy else sum(energy),
        "ended_early": early,
        "notes": _divergence_note(loss)
        + silent
        + ended
        + [line["note"] for line in lines if "note" in line][:MAX_NOTES],
        "time_to_s": {f"{target:g}": time_to(target, accuracies, times_s) for target in TARGETS},
    }


def with_final_score(lines: Iterable[dict[str, Any]], score: dict[str, float]) -> Iterator[dict[str, Any]]:
    """Yield the lines of a run; the score of the final model is added to the last line, which may have none."""
    last: dict[str, Any] | None = None
    for line in lines:
        if last is not None:
            yield last
        last = line
    if last is not None:
        yield last | score


def num_last(num_evaluations: int) -> int:
    """Return how many evaluations count as the end of a run: the last ten, but at most a quarter of all."""
    return max(1, min(LAST, num_evaluations // 4))


def _divergence_note(loss: float) -> list[str]:
    """Return a note if the final loss is far above that of an untrained model, although it is finite.

    The initial model is not evaluated, but an untrained model guesses: its loss is about ln(classes), 2.3 for ten
    classes and 6.9 for a thousand. Ten times the former means that the true class has a probability of 10⁻¹⁰ on
    average, which neither overfitting nor skewed data explain.
    """
    if loss <= DIVERGED_LOSS:
        return []
    far = f"the final loss, {loss:.3g}, is far above {math.log(10):.1f}, that of guessing among ten classes"
    return [f"{far}: training has diverged; use a smaller learning_rate or lr_cap"]


def _by_reason(lines: list[dict[str, Any]]) -> dict[str, int]:
    """Return the number of rejected updates by reason."""
    counts = Counter[str]()
    for line in lines:
        counts.update({reason: len(clients) for reason, clients in line.get("rejections", {}).items()})
    return dict(sorted(counts.items()))


def time_to(target: float, accuracies: ArrayLike, spent: ArrayLike) -> float | None:
    """Return what was spent (seconds, uploads, …) when a run reaches a target accuracy; None if it never does.

    This is the first evaluation at which the mean of three consecutive evaluations reaches the target.
    """
    accuracy = np.asarray(accuracies, dtype=float)
    if len(accuracy) < IN_A_ROW:
        return None
    mean = sum(accuracy[first : len(accuracy) - IN_A_ROW + 1 + first] for first in range(IN_A_ROW)) / IN_A_ROW
    reached = np.flatnonzero(mean >= target - ROUNDING)
    return float(np.asarray(spent)[reached[0] + IN_A_ROW - 1]) if len(reached) else None


MAX_CLIENTS = 2000
"""Maximum number of clients in clients.json; larger fleets are sampled evenly by latency."""


def clients_of(run: TrainingRun) -> dict[str, Any]:
    """Return the clients of a finished run as strict JSON values; None for what is unknown or infinite."""
    fleet, by_class = run.loop.fleet, run.evaluator.class_accuracy(run.model)
    chosen = sample_by_latency(fleet, MAX_CLIENTS)
    shares = run.evaluator.class_shares(chosen, len(by_class))
    # Accuracy on test images with the client's own class distribution; classes that it lacks are ignored.
    accuracy = np.where(shares > 0, shares * by_class, 0.0).sum(axis=1)
    accuracy[shares.sum(axis=1) == 0] = np.nan
    return {
        "num_clients": len(fleet),
        "class_accuracy": finite_or_none(by_class),
        "promoted": None if fleet.promoted is None else vars(fleet.promoted),
        "clients": {
            "number": chosen.tolist(),
            **columns_of(fleet, chosen),
            "num_samples": fleet.num_samples[chosen].tolist(),
            "accuracy": finite_or_none(accuracy),
        },
    }

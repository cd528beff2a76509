"""The summary of a run, computed from its metrics: final scores, times to targets, totals."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lesson.fleet.fleet import Fleet, columns_of, finite_or_none, links_of, sample_by_latency
from lesson.fleet.tiers import assign_tiers
from lesson.learn.evaluation import Evaluator
from lesson.learn.lane import GlobalModel
from lesson.learn.metric import Metric
from lesson.runs.read_back import each_line
from lesson.settings.settings import Settings
from lesson.strategies import has_deadline

LAST = 10
MAX_NOTES = 10
DIVERGED = 10
"""Multiple of the loss of guessing above which training must have diverged."""
WALL = "wall"
"""Value of `clock` in the summary of a run whose times are measured; the summaries of other runs have no clock."""
OWN_APP = "own app"
"""Data set in the settings of a run whose data only the clients of a Flower app know."""
VARYING_COUNTS = ("misses", "retiered", "lost")
"""Counts that only runs with varying times have: late updates, tier changes and lost updates. Only strategies with a
deadline have late updates."""


def read_metrics(path: Path | str) -> list[dict[str, Any]]:
    """Return the lines of a metrics file; none if there is no such file."""
    return list(each_line(Path(path)))


def summarize(
    settings: Settings,
    metrics: Path,
    metric: Metric,
    values: Mapping[str, float],
    loss: float,
    *,
    num_classes: int | None = None,
    stop_reason: str = "",
) -> dict[str, Any]:
    """Return the summary of a run.

    `values` are the metrics of the final model by name, and `metric` is the one by which runs are compared.
    The loss is NaN if it is unknown. `num_classes` is given if the loss is a cross-entropy, `stop_reason` if the run
    ended early.
    """
    final = values[metric.name]
    others = {name: value for name, value in values.items() if name != metric.name}
    lines = list(with_final_score(read_metrics(metrics), {metric.name: final}))
    scores = [line for line in lines if metric.name in line] or [{metric.name: final, "time_s": 0.0}]
    course, times_s = [line[metric.name] for line in scores], [line["time_s"] for line in scores]
    last = course[-num_last(len(scores)) :]
    energy = [line["energy_j"] for line in lines]
    uploads = sum(line["uploads"] for line in lines)
    early = "" if stop_reason == "time limit reached" else stop_reason
    ended = [] if not early or any(early in line.get("note", "") for line in lines[-1:]) else [early]
    is_trained = any(line.get("merged", line["uploads"]) for line in lines)
    what = "was aggregated" if uploads else "arrived"
    silent = [] if is_trained else [f"no update {what}, so the final model is the initial one"]
    return {
        "strategy": settings.strategy.name,
        "dataset": settings.data.dataset,
        "seed": settings.run.seed,
        "device": settings.run.device,
        "rounds": len(lines),
        "time_s": lines[-1]["time_s"] if lines else 0.0,
        **metric.fields,
        metric.name: final,
        **({"metrics": others} if others else {}),
        "loss": None if math.isnan(loss) else loss,
        metric.last10: sum(last) / len(last),
        "uploads": uploads,
        "rejected": sum(line.get("rejected", 0) for line in lines),
        "rejected_by": _by_reason(lines),
        "excluded": [client for line in lines for client in line.get("excluded", [])],
        **_exhausted(settings, lines),
        **_varying_counts(lines, settings.strategy.name),
        "bytes_up": sum(line["bytes_up"] for line in lines),
        "bytes_down": sum(line["bytes_down"] for line in lines),
        "energy_j": None if None in energy else sum(energy),
        "ended_early": early,
        "notes": _divergence_note(loss, num_classes)
        + (silent or _idle_note(settings, lines))
        + ended
        + [line["note"] for line in lines if "note" in line][:MAX_NOTES],
        "time_to_s": metric.times_to(course, times_s),
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


def _divergence_note(loss: float, num_classes: int | None) -> list[str]:
    """Return a note if the final loss is far above that of an untrained model, although it is finite.

    The initial model is not evaluated, but an untrained model guesses: its cross-entropy is about ln(classes), 2.3 for
    ten classes. Ten times this means that the true class has a probability of 10⁻¹⁰ on average, which neither
    overfitting nor skewed data explain. Other losses have no such scale.
    """
    guessing = math.log(max(num_classes, 2)) if num_classes else math.inf
    if not loss > DIVERGED * guessing:
        return []
    classes = "ten" if num_classes == 10 else f"{num_classes:,}"
    far = f"the final loss, {loss:.3g}, is far above {guessing:.1f}, that of guessing among {classes} classes"
    return [f"{far}: training has diverged; use a smaller learning_rate or lr_cap"]


def _exhausted(settings: Settings, lines: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Return the clients that could not afford another update, if there are energy budgets."""
    if settings.fleet.energy_budget_j is None:
        return {}
    return {"exhausted": [client for line in lines for client in line.get("exhausted", [])]}


def _varying_counts(lines: list[dict[str, Any]], strategy: str) -> dict[str, int]:
    """Return the totals of the VARYING_COUNTS that a run has."""
    names = [name for name in VARYING_COUNTS if lines and name in lines[0]]
    if "misses" in names and not has_deadline(strategy):
        names.remove("misses")  # a round of FedBuff ends with the next arrival, whenever that was expected
    return {name: sum(line[name] for line in lines) for name in names}


def _idle_note(settings: Settings, lines: list[dict[str, Any]]) -> list[str]:
    """Return a note if nothing was aggregated in the second half of a run."""
    last_s = max((line["time_s"] for line in lines if line["staleness"] is not None), default=0.0)
    if not lines or last_s >= lines[-1]["time_s"] / 2:
        return []
    remedy = ""
    is_never_refreshed = math.isinf(settings.server.refresh_estimates_every_s)
    if settings.varies and is_never_refreshed and has_deadline(settings.strategy.name):
        remedy = (
            "; clients whose latency was once estimated above the deadline may never have been asked again: set "
            "refresh_estimates_every_s"
        )
    return [f"{settings.strategy.name} aggregated no update after {last_s:.0f} s{remedy}"]


def _by_reason(lines: list[dict[str, Any]]) -> dict[str, int]:
    """Return the number of rejected updates by reason."""
    counts = Counter[str]()
    for line in lines:
        counts.update({reason: len(clients) for reason, clients in line.get("rejections", {}).items()})
    return dict(sorted(counts.items()))


def accuracy_by_tier(clients: Mapping[str, Any], deadline_s: float) -> dict[str, list[float]]:
    """Return the mean accuracy of clients in tier 1 and of all others; empty unless both are known.

    `clients` is the content of clients.json: each client's accuracy is that on test data with its own classes.
    """
    columns = clients["clients"]
    if "accuracy" not in columns:
        return {}
    accuracy, latency_s = (np.array(columns[name], dtype=float) for name in ("accuracy", "latency_s"))
    fast = assign_tiers(np.nan_to_num(latency_s, nan=np.inf), deadline_s) == 1
    groups = [accuracy[who & ~np.isnan(accuracy)] for who in (fast, ~fast)]
    if not all(map(len, groups)):
        return {}
    return {"accuracy_by_tier": [round(float(group.mean()), 4) for group in groups]}


MAX_CLIENTS = 2000
"""Maximum number of clients in clients.json; larger fleets are sampled evenly by latency."""


def clients_of(fleet: Fleet, evaluator: Evaluator | None, model: GlobalModel) -> dict[str, Any]:
    """Return the clients of a finished run as strict JSON values; None for what is unknown or infinite.

    If clients move or their times vary, positions and times are those at the start of the run, which fit together.
    Accuracies by class and by client are included only if the task has classes.
    """
    chosen, by_class, by_client = sample_by_latency(fleet, MAX_CLIENTS), dict[str, Any](), dict[str, Any]()
    if evaluator is not None and evaluator.num_classes is not None:
        accuracy, names = evaluator.class_accuracy(model), list(evaluator.class_names)
        by_class = {"class_accuracy": finite_or_none(accuracy)} | ({"class_names": names} if names else {})
        by_client = {"accuracy": finite_or_none(evaluator.own_accuracy(chosen, accuracy))}
    return {
        "num_clients": len(fleet),
        **by_class,
        "promoted": None if fleet.promoted is None else vars(fleet.promoted),
        "clients": {
            "number": chosen.tolist(),
            **columns_of(fleet, chosen),
            **links_of(fleet, chosen),
            "num_samples": fleet.num_samples[chosen].tolist(),
            **by_client,
        },
    }

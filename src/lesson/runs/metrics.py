"""The lines of metrics.jsonl: one per round."""

from typing import Any

import numpy as np

from lesson.clock.records import RoundRecord
from lesson.fleet.fleet import finite_or_none
from lesson.learn.results import RoundResult


def metrics_line(record: RoundRecord, named: bool) -> dict[str, Any]:
    """Return a round as a line of metrics; if `named`, with the client of each aggregated update."""
    energy = [record.compute_j, record.transmit_j]
    return {
        "round": record.round,
        "time_s": record.end_s,
        "uploads": record.uploads,
        "bytes_up": record.bytes_up,
        "bytes_down": record.bytes_down,
        "energy_j": None if None in energy else sum(energy),
        "staleness": int(record.staleness.sum()) / len(record.staleness) if len(record.staleness) else None,
        **(_merged_fields(record) if named else {}),
        **(_varying_fields(record, named) if record.misses is not None else {}),
        **({"rejected": record.rejected, "rejections": _rejections(record)} if record.rejected else {}),
        **({"excluded": list(record.excluded)} if record.excluded else {}),
        **({"exhausted": list(record.exhausted)} if record.exhausted else {}),
        **({"note": record.note} if record.note else {}),
    }


def _merged_fields(record: RoundRecord) -> dict[str, Any]:
    """Return client, staleness, start and arrival (to the millisecond) of each aggregated update."""
    started_s, arrived_s = np.array([record.merged_started_s, record.merged_arrived_s]).round(3).tolist()
    return {
        "merged": record.merged.tolist(),
        "merged_staleness": record.staleness.tolist(),
        "merged_started_s": started_s,
        "merged_arrived_s": arrived_s,
    }


def _varying_fields(record: RoundRecord, named: bool) -> dict[str, Any]:
    """Return the numbers of misses, tier changes and lost updates; if `named`, also the expected latencies."""
    expected = {"merged_expected_s": record.merged_expected_s.round(3).tolist()} if named else {}
    return expected | {"misses": record.misses, "retiered": record.retiered, "lost": record.lost}


def _rejections(record: RoundRecord) -> dict[str, list[int]]:
    """Return the clients whose updates were rejected, by reason."""
    clients: dict[str, list[int]] = {}
    for rejection in record.rejections:
        clients.setdefault(rejection.reason, []).append(rejection.client)
    return clients


def result_fields(result: RoundResult, has_classes: bool) -> dict[str, Any]:
    """Return the evaluations of a round as fields of its line; an empty dict if none was due.

    The scores on the clients' own data are None for a client without data; they include accuracies if the task has
    classes.
    """
    fields: dict[str, Any] = {}
    if result.clients is not None:
        fields["global_loss"] = result.clients.global_loss
        if has_classes:
            fields["client_accuracy"] = finite_or_none(result.clients.accuracy)
        fields["client_loss"] = finite_or_none(result.clients.loss)
    return fields if result.score is None else {**fields, **result.score.values, "loss": result.score.loss}

"""Base of the federations on both clocks: sends local training to remote clients and reports rejected updates."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lesson.clock.estimates import TIMES
from lesson.clock.faults import Disconnections
from lesson.clock.federation.clients import Clients, Reply
from lesson.clock.loop import Learner
from lesson.clock.records import RoundRecord
from lesson.clock.rejections import Rejection
from lesson.clock.simulate import Simulation
from lesson.core.arrays import FloatArray, IntArray, with_prefix
from lesson.fleet.fleet import Fleet
from lesson.settings.guards import GuardSettings
from lesson.settings.settings import Settings
from lesson.strategies.base import Merge, RoundPlan, Strategy, Updates

PATIENCE, MIN_PATIENCE_S = 4.0, 60.0
"""The server waits for an update for PATIENCE times its expected latency, and for MIN_PATIENCE_S at least."""


class Federation(Simulation):
    """A round loop whose clients are remote."""

    def __init__(
        self,
        strategy: Strategy,
        fleet: Fleet,
        clients: Clients,
        *,
        learner: Learner | None = None,
        seed: int = 0,
        settings: Settings | None = None,
        disconnections: Disconnections | None = None,
        guards: GuardSettings | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        options: dict[str, Any] = {"settings": settings, "disconnections": disconnections, "guards": guards}
        # Replies change times and weights; the copy keeps the caller's fleet unchanged.
        own = replace(fleet, **{name: getattr(fleet, name).copy() for name in (*TIMES, "client_weight")})
        super().__init__(strategy, own, learner=learner, seed=seed, **options)
        self.rejected = Counter[str]()
        """Number of updates rejected or given up so far, by reason."""
        self.merged_metrics: list[tuple[float, Mapping[str, float]]] = []
        """Client weight and reported metrics of each update in the last aggregation."""
        self._clients, self._tell = clients, tell
        self._metrics: dict[tuple[int, int], Mapping[str, float]] = {}
        self._released: dict[tuple[int, int], Mapping[str, float]] = {}

    def step(self, until_s: float = np.inf) -> RoundRecord | None:
        """Run the next round; see `Simulation`. The note of its record lists rejected updates and the reasons."""
        record = super().step(until_s)
        if record is None or not record.rejections:
            return record
        why = [f"rejected {self.fleet.names[rejection.client]}: {rejection.reason}" for rejection in record.rejections]
        return replace(record, note="; ".join([*filter(None, [record.note]), *why]))

    def state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Return the state of the run; see `Simulation`. It includes the models of updates that wait at the server."""
        values, arrays = super().state()
        waiting = self._clients.models_of(self._at_server)
        arrays |= {f"waiting.{place}": model for place, model in enumerate(waiting)}
        return values | {"rejected": dict(self.rejected)}, arrays

    def restore(self, values: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Continue from what `state` returned."""
        super().restore(values, arrays)
        self.rejected.update(values["rejected"])
        waiting = with_prefix(arrays, "waiting.")
        self._clients.put_back(self._at_server, [waiting[str(place)] for place in range(len(self._at_server))])

    def _start(self, plan: RoundPlan) -> None:
        super()._start(plan)
        self._send(plan.starts)

    def _send(self, clients: IntArray) -> None:
        """Send each of these busy clients its current local training."""
        if len(clients):
            updates = self._flight.work_of(clients)
            self._clients.send(updates, self.round, self._patience_s(updates.expected_s))

    def _patience_s(self, expected_s: FloatArray) -> FloatArray:
        """Return how many seconds to wait for each update, given its expected latency."""
        return np.maximum(MIN_PATIENCE_S, PATIENCE * expected_s)

    def _lose(self, lost: Updates) -> None:
        self._clients.give_up(lost.client)
        super()._lose(lost)

    def _drop(self, clients: IntArray) -> FloatArray:
        self._clients.give_up(clients)
        return super()._drop(clients)

    def _merge(self, merge: Merge) -> Updates:
        merged = super()._merge(merge)
        weights = self.fleet.client_weight[merged.client].tolist()
        told = [self._released[update] for update in merged.keys]
        self.merged_metrics = list(zip(weights, told, strict=True))
        return merged

    def _without(self, updates: Updates, rejections: Sequence[Rejection]) -> Updates:
        for rejection in rejections:
            self._tell_rejected(Reply(rejection.client, rejection.index, fault=rejection.reason))
        return super()._without(updates, rejections)

    def _why_excluded(self, against: Mapping[int, str]) -> str:
        note = super()._why_excluded(against)
        if note:
            self._tell(f"round {self.round}: {note}")
        return note

    def _release(self, updates: Updates) -> None:
        super()._release(updates)
        self._clients.forget(updates)
        self._released = {update: self._metrics.pop(update, {}) for update in updates.keys}

    def _take_in(self, reply: Reply) -> None:
        """Record the weight and the metrics that came with a usable update."""
        if reply.weight is not None:
            self.fleet.client_weight[reply.client] = reply.weight
        self._metrics[reply.client, reply.index] = reply.metrics

    def _is_at(self, reply: Reply) -> bool:
        """Return whether a reply belongs to its client's current local training, not to one given up before."""
        who = np.array([reply.client])
        return bool(self._flight.busy(who)[0]) and int(self._flight.work_of(who).index[0]) == reply.index

    def _reject(self, fault: Reply) -> None:
        """Record, count and log a rejected update."""
        self._rejections.append(Rejection(fault.client, fault.index, fault.fault))
        self._tell_rejected(fault)

    def _tell_rejected(self, fault: Reply) -> None:
        self.rejected[fault.fault] += 1
        name, detail = self.fleet.names[fault.client], f" ({fault.detail})" if fault.detail else ""
        self._tell(f"round {self.round}: rejected an update of client {name}: {fault.fault}{detail}")

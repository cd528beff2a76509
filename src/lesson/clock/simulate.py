"""Simulation on a virtual clock. Times are fixed, or vary with channels, compute speed and availability.

`varying` has the actual times and `estimates` the server's estimates of them; this module connects both to the round
loop.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lesson.clock.estimates import LatencyEstimator
from lesson.clock.faults import Disconnections
from lesson.clock.loop import Learner, RoundLoop, known_j
from lesson.clock.presence import Availability
from lesson.clock.records import RoundRecord
from lesson.clock.varying import VaryingWorld
from lesson.core.arrays import NO_CLIENTS, FloatArray, IntArray, copied, read_only, with_prefix
from lesson.core.errors import InputError
from lesson.core.validation import shown
from lesson.fleet.fleet import Fleet
from lesson.fleet.tiers import TOLERANCE, UNREACHABLE
from lesson.settings.faults import FaultSettings
from lesson.settings.guards import GuardSettings
from lesson.settings.settings import Settings
from lesson.strategies.base import Closing, RoundPlan, Strategy, Updates


class Simulation(RoundLoop):
    """A strategy and a fleet on the virtual clock; `step` runs one round.

    Only settings that make times vary have an effect here. Without any, and without `disconnections` (injected faults),
    every update takes exactly its client's latency in the fleet.
    """

    def __init__(
        self,
        strategy: Strategy,
        fleet: Fleet,
        *,
        learner: Learner | None = None,
        seed: int = 0,
        settings: Settings | None = None,
        disconnections: Disconnections | None = None,
        guards: GuardSettings | None = None,
    ) -> None:
        self._world: VaryingWorld | None = None
        self._present: Availability | None = None
        settings = settings or Settings()
        if not settings.varies and disconnections is None:
            super().__init__(strategy, fleet, learner=learner, seed=seed, guards=guards)
            return
        self._world, self._estimator = (
            VaryingWorld(settings, fleet, seed, disconnections),
            LatencyEstimator(settings, fleet, seed),
        )
        super().__init__(strategy, self._estimator.fleet, learner=learner, seed=seed, guards=guards)
        self._known["first_latency_s"] = read_only(self._estimator.first_latency_s)
        self._ask_every_s, self._num_asked = settings.server.refresh_estimates_every_s, 0
        self._tiers: IntArray = np.zeros(len(fleet), dtype=np.int64)
        """Tier in which each client last started; 0 before its first start."""
        self._retiered = 0
        """Number of clients that started in another tier in this round."""
        self._lost = self._flight.work_of(NO_CLIENTS)
        """Updates that were lost in this round because their clients left or disconnected."""
        self._met_s = 0.0
        """Time up to which clients that joined or left have been noted."""
        if disconnections is not None or self._world.presence is not None:
            self._present = Availability(len(fleet), self._world.presence)
            self._idle &= self._present.is_available(0.0)
            self._connected &= self._idle
            self._num_connected = int(np.count_nonzero(self._idle))
            self._freed = [np.flatnonzero(self._idle)]

    def _opens(self, until_s: float) -> bool:
        if self._present is not None and not self._somebody_comes(self._present, until_s):
            return False
        if self._world is not None and (due := int(self.now_s * (1 + TOLERANCE) / self._ask_every_s)) > self._num_asked:
            self._num_asked = due
            self._ask(self._world)
        return super()._opens(until_s)

    def _somebody_comes(self, present: Availability, until_s: float) -> bool:
        """Return whether a client is connected or an update is pending, advancing the clock until a client joins.

        If none joins by `until_s`, set `stop_reason`.
        """
        while not self._num_connected and not len(self._flight) and not len(self._at_server):
            comes_s = present.next_arrival_s(self.now_s)
            if math.isinf(comes_s) or comes_s > until_s * (1 + TOLERANCE):
                self.stop_reason = self._no_clients_reason() if math.isinf(comes_s) else "time limit reached"
                return False
            self._wait_until(comes_s, present)
        return True

    def _wait_until(self, now_s: float, present: Availability) -> None:
        self.now_s = now_s
        self._meet(present)

    def _meet(self, present: Availability) -> None:
        """Note which clients have joined or left since the last call."""
        came, left = present.changes(self._met_s, self.now_s)
        self._met_s = self.now_s
        came = came[np.isfinite(self.fleet.latency_s[came]) & ~self.rejection_ledger.excluded[came]]
        self._disconnect(left)
        self._num_connected += len(came)
        self._connected[came], self._idle[came] = True, ~self._flight.busy(came)
        self._freed.append(came)

    def _ask(self, world: VaryingWorld) -> None:
        """Refresh the estimates of idle clients with the times that their usual local training would take now."""
        idle = np.flatnonzero(self._idle)
        self._estimator.see(idle, world.asked_s(idle, self.now_s))
        self._freed.append(idle)

    def _drop(self, clients: IntArray) -> FloatArray:
        if self._world is not None and len(clients):
            self._world.leave_band(clients, dropped=True)
        return super()._drop(clients)

    def _start(self, plan: RoundPlan) -> None:
        super()._start(plan)
        if self._world is not None and plan.tiers is not None:
            before, self._tiers[plan.starts] = self._tiers[plan.starts], plan.tiers
            self._retiered = int(np.count_nonzero((before != plan.tiers) & (before != UNREACHABLE)))

    def _arrives_s(self, starts: IntArray, expected_s: FloatArray) -> FloatArray:
        if self._world is None or not len(starts):
            return super()._arrives_s(starts, expected_s)
        free_s = self._flight.final_arrival_s() if self._in_turn[starts].any() else None
        return self._world.launch(starts, self._flight.num_starts(starts), self._work[starts], self.now_s, free_s)

    def _close(self, closes: Closing, until_s: float) -> tuple[float, str]:
        if self._world is not None:
            self._world.forecast(self._flight)
        return super()._close(closes, until_s)

    def _land(self) -> Updates:
        landed = super()._land()
        if self._present is not None:
            self._meet(self._present)
        return landed

    def _accepted(self, landed: Updates) -> Updates:
        return landed if self._world is None else self._arrived(landed, self._world)

    def _arrived(self, landed: Updates, world: VaryingWorld) -> Updates:
        """Return the updates that arrived and were not lost, after updating the estimates with their times."""
        world.pass_time(self.now_s)
        world.leave_band(landed.client)
        gone = world.lost[landed.client]
        landed, self._lost = landed[~gone], landed[gone]
        self._lose(self._lost)
        who = landed.client
        self._estimator.see(who, world.parts_s(landed, self._work[who], self._in_turn[who]))
        if self._present is not None:
            self._part(self._lost.client[world.back_s[self._lost.client] > self.now_s], self._present, world)
        return landed

    def _part(self, clients: IntArray, present: Availability, world: VaryingWorld) -> None:
        """Note that these clients have disconnected and not rejoined yet."""
        present.drop_out(clients, world.back_s[clients])
        self._disconnect(clients)

    def _lose(self, lost: Updates) -> None:
        """Discard updates whose clients have left or disconnected."""
        self._let_go(lost)

    def _find_stop_reason(self, moved: bool, until_s: float) -> str:
        if self._present is not None and not moved and not len(self._flight):
            change_s = self._present.next_change_s(self.now_s)
            if change_s < np.inf and change_s <= until_s * (1 + TOLERANCE):
                self._wait_until(change_s, self._present)
                return ""
            if change_s == np.inf and not self._num_connected:
                return self._no_clients_reason()
        return super()._find_stop_reason(moved, until_s)

    def _clients_gone_for_good(self) -> bool:
        if self._present is None:
            return super()._clients_gone_for_good()
        gone = super()._clients_gone_for_good() or bool(np.isinf(self._present.back_s).any())
        return gone and self._present.next_change_s(self.now_s) == np.inf

    def _extend_record(self, landed: Updates, record: RoundRecord) -> RoundRecord:
        """Return the record with misses, tier changes and lost updates, if times vary."""
        if self._world is None:
            return record
        late = landed.started_s + landed.expected_s <= record.start_s * (1 + TOLERANCE)
        told = replace(record, misses=int(np.count_nonzero(late)), retiered=self._retiered, lost=len(self._lost))
        self._retiered = 0
        if not len(self._lost) or record.compute_j is None or record.transmit_j is None:
            return told
        compute_j, transmit_j = self._spent_j(self._lost, self._lost.arrived_s - self._lost.started_s)
        computing_j, sending_j = known_j(record.compute_j + compute_j), known_j(record.transmit_j + transmit_j)
        return replace(told, compute_j=computing_j, transmit_j=sending_j)

    def _spent_j(self, updates: Updates, elapsed_s: FloatArray | float) -> FloatArray:
        if self._world is None:
            return super()._spent_j(updates, elapsed_s)
        return self._world.spent_j(updates.client, elapsed_s, updates.started_s)

    def state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Return the state of the run; see `RoundLoop`. It includes the actual times and the server's estimates."""
        values, arrays = super().state()
        if self._world is not None:
            values |= {"num_asked": self._num_asked, "files": self._world.files}
            own: dict[str, npt.NDArray[Any]] = {"tiers": self._tiers, "connected": self._connected}
            own |= {"back_s": self._present.back_s} if self._present is not None else {}
            own |= {f"world.{name}": array for name, array in self._world.state().items()}
            own |= {f"estimator.{name}": array for name, array in self._estimator.state().items()}
            arrays |= copied(own)
        return values, arrays

    def restore(self, values: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Continue from what `state` returned; the run is bit-identical to an uninterrupted one."""
        super().restore(values, arrays)
        if self._world is not None:
            for name, digest in self._world.files.items():
                if digest != values["files"][name]:
                    raise InputError(
                        f"[fleet] {name} must be the file that the run started with, but it has changed; restore it"
                    )
            self._tiers[:], self._connected[:] = arrays["tiers"], arrays["connected"]
            self._num_connected, self._met_s = int(np.count_nonzero(self._connected)), self.now_s
            if self._present is not None and "back_s" in arrays:
                self._present.restore(arrays["back_s"], self.now_s)
            self._num_asked = values["num_asked"]
            self._world.restore(with_prefix(arrays, "world."))
            self._estimator.restore(with_prefix(arrays, "estimator."))


def simulate(
    strategy: Strategy,
    fleet: Fleet,
    *,
    rounds: int | None = None,
    until_s: float = np.inf,
    seed: int = 0,
    settings: Settings | None = None,
    faults: FaultSettings | None = None,
    guards: GuardSettings | None = None,
) -> Iterator[RoundRecord]:
    """Return an iterator over the records of at most `rounds` rounds, all of which close by `until_s`.

    There are fewer if the run ends early. `settings` may make times vary, and `faults` may disconnect clients;
    corrupted values matter only in training. Invalid arguments raise InputError at once, not in the first round.
    """
    _check_objects(
        strategy, fleet, settings=(settings, Settings), faults=(faults, FaultSettings), guards=(guards, GuardSettings)
    )
    if rounds is not None:
        _check_whole("rounds", rounds, least=1)
    _check_whole("seed", seed, least=0)
    if not isinstance(until_s, float | int | np.floating | np.integer) or not until_s > 0:
        raise InputError(f"until_s must be a number > 0, got {shown(until_s)}")
    if rounds is None and until_s == np.inf:
        raise InputError("rounds or until_s must be given: a run has to end")
    disconnections = Disconnections.of(faults or FaultSettings(), seed)
    simulation = Simulation(strategy, fleet, seed=seed, settings=settings, disconnections=disconnections, guards=guards)
    return _records(simulation, rounds, until_s)


def _check_objects(strategy: object, fleet: object, **optional: tuple[object, type]) -> None:
    """Raise unless arguments have the right types; `optional` gives value and type of those that may be None."""
    if isinstance(strategy, type):
        name = strategy.__name__
        raise InputError(f"strategy must be a strategy such as FedAvg(), got the class {name}; create an object of it")
    if missing := [name for name in ("open_round", "merge", "needs") if not hasattr(strategy, name)]:
        got = f"{shown(strategy)}, which has no {missing[0]}"
        raise InputError(f"strategy must be a strategy such as FedAvg(), got {got}")
    if not isinstance(fleet, Fleet):
        raise InputError(f"fleet must be a Fleet, got {shown(fleet)}")
    for name, (value, kind) in optional.items():
        if value is not None and not isinstance(value, kind):
            raise InputError(f"{name} must be a {kind.__name__} object or None, got {shown(value)}")


def _check_whole(name: str, value: object, least: int) -> None:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise InputError(f"{name} must be a whole number >= {least}, got {shown(value)}")


def _records(simulation: Simulation, rounds: int | None, until_s: float) -> Iterator[RoundRecord]:
    """Yield the records; a separate generator, so that `simulate` checks its arguments when it is called."""
    while (rounds is None or simulation.round < rounds) and not simulation.stop_reason:
        record = simulation.step(until_s)
        if record is not None:
            yield record

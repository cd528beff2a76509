"""Rounds of real clients: the loop and the strategies of the simulator, with updates that come from elsewhere.

On the virtual clock a fleet says when updates arrive, and the loop waits as long as it takes to have them. On the wall
a round is over when its time is, updates arrive when they do, and the server learns from that how long clients take.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lesson.arrays import BoolArray, FloatArray, IntArray, with_prefix
from lesson.errors import RunStoppedError
from lesson.fleet import Fleet
from lesson.latency import Estimates
from lesson.records import RoundRecord
from lesson.simulate import Learner, Simulation
from lesson.strategies.base import Closing, Merge, RoundPlan, Strategy, Updates

POLL_S = 0.1
PATIENCE, MIN_PATIENCE_S = 4.0, 60.0
"""An update is given up after so many times what was expected, and so many seconds at least."""
TELL_S = 30.0
"""Who waits for longer says for whom."""
NOBODY_S = 600.0
"""A run ends when nobody has been connected for so long."""
LAG_S, MIN_ROUND_S = 0.5, 1.0
"""A round whose deadline passed longer ago than the one ends now; one with nobody at work lasts the other."""
NO_REPLY, LOST, TOO_LATE, RESTARTED = "no reply", "node lost", "too late", "server restarted"


@dataclass(frozen=True)
class Reply:
    """What has come of a client's work."""

    client: int
    index: int
    """Which piece of its client's work."""
    weight: float | None = None
    """What the client says it counts for."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    fault: str = ""
    """Why it cannot be used, in two words: the same for faults of one kind."""
    detail: str = ""


@dataclass(frozen=True)
class Joined:
    """A client is there that was not; its latency, and the part of it for computing, are NaN where not measured."""

    client: int
    latency_s: float = math.nan
    compute_s: float = math.nan


@dataclass(frozen=True)
class Left:
    """A client is gone."""

    client: int


Event = Reply | Joined | Left


class Clients(Protocol):
    """Where the clients are. Models travel beside: whoever merges them finds them by client and index."""

    def send(self, updates: Updates, round: int, patience_s: FloatArray) -> None:
        """Have clients work on these updates, each from its base version; after `patience_s` nobody waits any more."""
        ...

    def poll(self) -> Sequence[Event]:
        """What has happened since the last call, every fault as a reply; does not wait."""
        ...

    def give_up(self, clients: IntArray) -> None:
        """Nobody waits for the work of these clients any more."""
        ...

    def forget(self, updates: Updates) -> None:
        """The models of these updates are not needed any more."""
        ...

    def models_of(self, updates: Updates) -> Sequence[npt.NDArray[np.floating]]:
        """The models of these updates, which have arrived."""
        ...

    def put_back(self, updates: Updates, models: Sequence[npt.NDArray[np.floating]]) -> None:
        """Have these models again, after a restart."""
        ...


class Federation(Simulation):
    """What both clocks have in common: who is told to work, and what is not accepted."""

    def __init__(
        self,
        strategy: Strategy,
        fleet: Fleet,
        clients: Clients,
        *,
        learner: Learner | None = None,
        seed: int = 0,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(strategy, fleet, learner=learner, seed=seed)
        self.refused = Counter[str]()
        """How many updates were refused or given up in all, by the kind of fault."""
        self.merged_metrics: list[tuple[float, Mapping[str, float]]] = []
        """What clients told with the updates of the last merge, and what each of these clients counts for."""
        self._clients, self._tell = clients, tell
        self._metrics: dict[tuple[int, int], Mapping[str, float]] = {}
        self._released: dict[tuple[int, int], Mapping[str, float]] = {}
        self._faults: list[Reply] = []

    def step(self, until_s: float = np.inf) -> RoundRecord | None:
        """Run the next round; see `Simulation`. The record says what was refused, and why."""
        record = super().step(until_s)
        faults, self._faults = self._faults, []
        if record is None or not faults:
            return record
        why = [f"refused {self.fleet.names[fault.client]}: {fault.fault}" for fault in faults]
        return replace(record, refused=len(faults), note="; ".join([*filter(None, [record.note]), *why]))

    def state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Where the run stands; see `Simulation`. With the models that wait at the server."""
        values, arrays = super().state()
        waiting = self._clients.models_of(self._at_server)
        arrays |= {f"waiting.{place}": model for place, model in enumerate(waiting)}
        return values | {"refused": dict(self.refused)}, arrays

    def restore(self, values: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Go on from what `state` returned."""
        super().restore(values, arrays)
        self.refused.update(values["refused"])
        waiting = with_prefix(arrays, "waiting.")
        self._clients.put_back(self._at_server, [waiting[str(place)] for place in range(len(self._at_server))])

    def _start(self, plan: RoundPlan) -> None:
        super()._start(plan)
        if len(plan.starts):
            updates = self._flight.work_of(plan.starts)
            self._clients.send(updates, self.round, self._patience_s(updates.expected_s))

    def _patience_s(self, expected_s: FloatArray) -> FloatArray:
        """How long to wait for updates that are expected to take so long."""
        return np.maximum(MIN_PATIENCE_S, PATIENCE * expected_s)

    def _drop(self, clients: IntArray) -> FloatArray:
        self._clients.give_up(clients)
        return super()._drop(clients)

    def _merge(self, merge: Merge) -> Updates:
        merged = super()._merge(merge)
        weights = self.fleet.client_weight[merged.client].tolist()
        told = [self._released[update] for update in merged.keys]
        self.merged_metrics = list(zip(weights, told, strict=True))
        return merged

    def _release(self, updates: Updates) -> None:
        super()._release(updates)
        self._clients.forget(updates)
        self._released = {update: self._metrics.pop(update, {}) for update in updates.keys}

    def _take_in(self, reply: Reply) -> None:
        """Note what came with an update that can be used."""
        if reply.weight is not None:
            self.fleet.client_weight[reply.client] = reply.weight
        self._metrics[reply.client, reply.index] = reply.metrics

    def _is_at(self, reply: Reply) -> bool:
        """Whether it is about what its client is at, not about something given up before."""
        who = np.array([reply.client])
        return bool(self._flight.busy(who)[0]) and int(self._flight.work_of(who).index[0]) == reply.index

    def _refuse(self, fault: Reply) -> None:
        """Count and tell an update that is not used."""
        self._faults.append(fault)
        self.refused[fault.fault] += 1
        name, detail = self.fleet.names[fault.client], f" ({fault.detail})" if fault.detail else ""
        self._tell(f"round {self.round}: refused an update of client {name}: {fault.fault}{detail}")


class VirtualFederation(Federation):
    """On the virtual clock: an update that arrives by the fleet's latencies is waited for on the wall."""

    timeout_s = 3600.0
    """Seconds on the wall after which an update is given up."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._early: dict[tuple[int, int], Reply] = {}
        """Replies to updates that have not landed yet."""

    def restore(self, values: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Go on from what `state` returned; what was in flight is sent again."""
        super().restore(values, arrays)
        if len(self._flight):
            updates = self._flight.work_of(self._flight.everybody())
            self._clients.send(updates, self.round, self._patience_s(updates.expected_s))

    def _patience_s(self, expected_s: FloatArray) -> FloatArray:
        return np.full_like(expected_s, self.timeout_s)

    def _accepted(self, landed: Updates) -> Updates:
        self._wait_for(set(landed.keys))
        good: BoolArray = np.ones(len(landed), dtype=np.bool_)
        for place, update in enumerate(landed.keys):
            reply = self._early.pop(update)
            good[place] = not reply.fault
            (self._refuse if reply.fault else self._take_in)(reply)
        if not good.all():
            self._let_go(landed[~good])
        return landed[good]

    def _wait_for(self, landed: set[tuple[int, int]]) -> None:
        """Have the replies to all these updates, and keep those to others that are in flight."""
        told_s = time.monotonic()
        while missing := landed - self._early.keys():
            if time.monotonic() - told_s > TELL_S:
                told_s = time.monotonic()
                names = ", ".join(str(self.fleet.names[client]) for client, _ in sorted(missing)[:5])
                self._tell(f"round {self.round}: still waiting for {len(missing)} clients: {names}")
            replies = [event for event in self._clients.poll() if isinstance(event, Reply)]
            for reply in replies:
                # A reply to anything else is to what the strategy dropped: no fault, and it comes when it likes.
                if (reply.client, reply.index) in landed or self._is_at(reply):
                    self._early[reply.client, reply.index] = reply
            if not replies:
                time.sleep(POLL_S / 5)

    def _drop(self, clients: IntArray) -> FloatArray:
        for update in self._flight.work_of(clients).keys:
            self._early.pop(update, None)
        return super()._drop(clients)


class WallFederation(Federation):
    """On the wall: updates arrive when they do, and clients come and go."""

    def __init__(
        self,
        *args: Any,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.estimates = Estimates(self.fleet.latency_s)
        self._clock, self._sleep = clock, sleep
        self._zero_s = clock()
        self._alone_s = 0.0
        """When somebody was last connected."""

    def step(self, until_s: float = np.inf) -> RoundRecord | None:
        """Run the next round; see `Federation`. The clock starts with the first."""
        if not self.round:
            self._zero_s = self._clock()
        if self.elapsed_s - self.now_s > LAG_S:  # evaluation and checkpoints are no client's time
            self.now_s = self.elapsed_s
        return super().step(until_s)

    def state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Where the run stands; see `Federation`. With what was seen of latencies."""
        values, arrays = super().state()
        return values, arrays | {"seen_s": self.estimates.seen_s, "latency_s": self.fleet.latency_s}

    def restore(self, values: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Go on from what `state` returned, with the clients that are there now; what was in flight is lost."""
        super().restore(values, arrays)
        self._zero_s, self._alone_s = self._clock() - self.now_s, self.now_s
        known = self._connected & np.isfinite(arrays["latency_s"])
        self.estimates.seen_s[:] = arrays["seen_s"]
        self.fleet.latency_s[known] = arrays["latency_s"][known]
        lost = self._flight.take(self._flight.everybody())
        for client, index in lost.keys:
            self._refuse(Reply(client, index, fault=RESTARTED))
        self._let_go(lost)
        self._idle[:] = self._connected
        self._freed.append(np.flatnonzero(self._idle))

    @property
    def elapsed_s(self) -> float:
        """Seconds on the wall since the run began, those before a restart included."""
        return self._clock() - self._zero_s

    def _takes_s(self, expected_s: FloatArray) -> FloatArray:
        return np.full_like(expected_s, np.inf)

    def _close(self, closes: Closing, until_s: float) -> tuple[float, str]:
        """Wait until the round closes, by the rules of the virtual clock on what has arrived so far.

        It ends at its deadline, or when the server finds that nothing is left to wait for. After a long evaluation, or
        with nobody connected, it ends late: no rounds are run through to catch up.
        """
        while True:
            now_s = self.elapsed_s
            for event in self._clients.poll():
                self._happens(event, now_s)
            alone = self._alone(now_s)
            end_s, note = self._closing_s(closes)
            by_deadline = end_s == closes.by_s
            waited = by_deadline or len(self._flight) or now_s - self.now_s >= MIN_ROUND_S
            if end_s <= now_s and waited and not alone:
                return (end_s if by_deadline and now_s - end_s < LAG_S else now_s), note
            if now_s > until_s:
                return np.inf, ""
            self._sleep(POLL_S if alone else min(POLL_S, max(end_s - now_s, POLL_S / 10)))

    def _alone(self, now_s: float) -> bool:
        """Whether nobody is connected; raises when that has been so for long."""
        if self._num_connected:
            self._alone_s = now_s
        elif now_s - self._alone_s > NOBODY_S:
            raise RunStoppedError(f"no client has been connected for {NOBODY_S:g} s; start some and resume the run")
        return not self._num_connected

    def _land(self) -> Updates:
        landed = super()._land()
        self._idle[landed.client] = self._connected[landed.client]
        return landed

    def _happens(self, event: Event, now_s: float) -> None:
        match event:
            case Reply():
                self._replied(event, now_s)
            case Left(client=client) if self._connected[client]:
                self._gone(client, now_s)
            case Joined(client=client) if not self._connected[client]:
                self._come(client, event)

    def _replied(self, reply: Reply, now_s: float) -> None:
        client, current = reply.client, self._is_at(reply)
        if not reply.fault and current:
            self._flight.arrive(client, now_s)
            self._take_in(reply)
            self._see(client, now_s)
            return
        self._refuse(reply if reply.fault else replace(reply, fault=TOO_LATE))
        if reply.fault == NO_REPLY and current:
            self._see(client, now_s)
        if current:
            self._let_go(self._flight.take(np.array([client])))

    def _gone(self, client: int, now_s: float) -> None:
        who = np.array([client])
        if self._flight.last_arrival_s(who) == np.inf:  # at work, and its update has not arrived
            self._clients.give_up(who)
            self._replied(Reply(client, int(self._flight.work_of(who).index[0]), fault=LOST), now_s)
        self._idle[client] = self._connected[client] = False
        self._num_connected -= 1
        self._tell(f"round {self.round}: client {self.fleet.names[client]} is gone")

    def _come(self, client: int, measured: Joined) -> None:
        if not math.isnan(measured.latency_s):
            self.estimates.seen_s[client] = np.nan
            self.estimates.see(client, measured.latency_s)
            self._divide(client, measured.compute_s / measured.latency_s)
        self._connected[client] = True
        self._idle[client] = not self._flight.busy(np.array([client]))[0]
        self._num_connected += 1
        self._freed.append(np.array([client]))
        self._tell(f"round {self.round}: client {self.fleet.names[client]} is there")

    def _see(self, client: int, now_s: float) -> None:
        """Learn from how long a client took from its start until now; what is slower is so in all of its parts."""
        took_s = max(now_s - self._flight.started_s[client], 1e-3)
        share = self.fleet.compute_s[client] / (self.fleet.compute_s[client] + self.fleet.upload_s[client])
        if self._work[client] != 1:
            took_s /= 1 + share * (self._work[client] - 1)
        self.estimates.see(client, took_s)
        self._divide(client, share)

    def _divide(self, client: int, share: float) -> None:
        """Have so large a part of the latency that is believed be for computing, the rest for the upload."""
        latency_s = self.fleet.latency_s[client]
        self.fleet.compute_s[client] = share * latency_s
        for column in (self.fleet.upload_s, self.fleet.shared_upload_s):
            column[client] = (1 - share) * latency_s

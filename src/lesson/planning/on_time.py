"""Simulated round lengths and shares of updates that arrive by the end of their slots, for times that vary."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from lesson.clock.ledger import Ledger
from lesson.clock.records import RoundRecord
from lesson.clock.simulate import make_loop, simulate
from lesson.core.arrays import BoolArray, IntArray
from lesson.core.errors import ArgumentError
from lesson.fleet.fleet import Fleet
from lesson.fleet.tiers import UNREACHABLE, assign_tiers, due_round
from lesson.settings.settings import Settings
from lesson.strategies.fedavg import FedAvg
from lesson.strategies.lesson import Lesson

UPLOADS_EACH = 20
"""A deadline is simulated until the slowest tier has had this many slots."""
MIN_ROUNDS, MAX_ROUNDS, MAX_SLOTS = 50, 500, 100_000
"""Limits of that simulation: rounds, and slots of all clients that have ended."""
MAX_SLOTS_SHARED = 5_000
"""Maximum number of slots on a shared band, where rounds are much slower to simulate and limited to MIN_ROUNDS."""
MAX_CLIENTS = 2_000
"""Maximum number of clients to simulate, unless they share a band or files describe them."""
SLACK = 5.0
"""Deadlines are tried up to this multiple of the slowest client's latency, where all clients are well within tier 1."""


@dataclass(frozen=True)
class OnTime:
    """Share of updates that arrive by the end of their slots, in all and by tier, for tiers with slots that ended."""

    share: float | None
    by_tier: Mapping[int, float] = field(default_factory=dict)
    round_s: float | None = None
    """Mean round length in the simulation; None if nothing was simulated."""


class Slots:
    """Counts which of LESSON's updates arrive by the end of their slots, from the records of a simulation.

    A slot begins when a client starts and lasts j rounds, where j is the tier in which the client starts. An update
    that is lost because its client leaves has missed its slot.
    """

    def __init__(self, num_clients: int) -> None:
        self._tier: IntArray = np.full(num_clients, UNREACHABLE)
        """Tier of each client's current slot; UNREACHABLE if it has none."""
        self._last_round: IntArray = np.zeros(num_clients, dtype=np.int64)
        """Last round of each client's current slot."""
        self._ended: list[tuple[IntArray, BoolArray]] = []
        """Tiers of slots that have ended, and whether their updates arrived on time."""
        self.num_ended = 0

    def add(self, record: RoundRecord, ledger: Ledger) -> None:
        """Count the slots that end in a round; `ledger` is as the round left it."""
        assert record.tiers is not None
        self._end(record.started, made=False)  # they could not start again unless their updates had been lost
        self._tier[record.started] = record.tiers
        self._last_round[record.started] = due_round(record.round, record.tiers)
        self._end(record.merged, made=record.round <= self._last_round[record.merged])
        self._end(np.flatnonzero(~ledger.connected & (ledger.waiting == 0)), made=False)

    def on_time(self, num_rounds: int) -> OnTime:
        """Return the shares over all slots that have ended after `num_rounds` rounds."""
        self._end(np.flatnonzero(self._last_round <= num_rounds), made=False)
        if not self.num_ended:
            return OnTime(None)
        tiers, made = map(np.concatenate, zip(*self._ended, strict=True))
        tiers, places = np.unique(tiers, return_inverse=True)
        shares = np.bincount(places, made) / np.bincount(places)
        return OnTime(float(made.mean()), dict(zip(tiers.tolist(), shares.tolist(), strict=True)))

    def _end(self, clients: IntArray, made: BoolArray | bool) -> None:
        """End the current slots of these clients, if they have one."""
        has_slot = self._tier[clients] != UNREACHABLE
        self._ended.append((self._tier[clients[has_slot]], np.broadcast_to(made, clients.shape)[has_slot]))
        self._tier[clients] = UNREACHABLE
        self.num_ended += int(np.count_nonzero(has_slot))


def simulate_on_time(fleet: Fleet, deadline_s: float, settings: Settings | None = None, seed: int = 0) -> OnTime:
    """Simulate LESSON without training and return the share of updates on time; 1 if times do not vary.

    Of a large fleet, only the first MAX_CLIENTS are simulated, unless they share a band or files describe them.
    Injected faults are not simulated.
    """
    if not fleet.varying(settings):
        return OnTime(1.0, dict.fromkeys(assign_tiers(fleet.latency_s, deadline_s).tolist(), 1.0))
    settings = (settings or Settings()).without_faults()
    shared = settings.radio.spectrum != "fixed"
    files = settings.fleet.trace, settings.fleet.presence, settings.fleet.positions, settings.fleet.latencies
    if not (shared or any(files)):
        fleet = fleet.first(MAX_CLIENTS)
    slowest_tier = float(assign_tiers(fleet.latency_s, deadline_s).max())
    rounds = MIN_ROUNDS if shared else int(np.clip(UPLOADS_EACH * slowest_tier, MIN_ROUNDS, MAX_ROUNDS))
    loop, slots, records = make_loop(Lesson(deadline_s), fleet, seed=seed, settings=settings), Slots(len(fleet)), []
    max_slots = MAX_SLOTS_SHARED if shared else MAX_SLOTS
    while loop.round < rounds and slots.num_ended < max_slots and (record := loop.step()):
        slots.add(record, loop.ledger)
        records.append(record)
    return replace(slots.on_time(len(records)), round_s=_mean_round_s(records))


def simulate_fedavg_round_s(fleet: Fleet, settings: Settings | None = None, seed: int = 0) -> float | None:
    """Return the mean round length of FedAvg: the slowest client's latency or, if times vary or resources are
    allocated, a simulated mean.

    None if no round ends in the simulation. Injected faults are not simulated.
    """
    varies, settings = bool(fleet.varying(settings)), settings or Settings()
    if not (varies or settings.radio.allocation):
        return fleet.slowest_s
    max_slots = MAX_SLOTS if settings.radio.spectrum == "fixed" else MAX_SLOTS_SHARED
    rounds = int(np.clip(max_slots // len(fleet), 1, MIN_ROUNDS)) if varies else 1
    return _mean_round_s(simulate(FedAvg(), fleet, rounds=rounds, seed=seed, settings=settings.without_faults()))


def _mean_round_s(records: Iterable[RoundRecord]) -> float | None:
    """Return the mean length of rounds, without the time between them, to nine digits; None if there are none."""
    lengths_s = [record.end_s - record.start_s for record in records]
    return float(f"{np.mean(lengths_s):.9g}") if lengths_s else None


def find_deadline_s(
    fleet: Fleet,
    share: float,
    begin_s: float,
    *,
    settings: Settings | None = None,
    seed: int = 0,
    before_try: Callable[[float], None] = lambda _: None,
) -> float:
    """Return the first deadline, from `begin_s` on in steps of about 10 %, at which `share` of the updates are on time.

    `before_try` is called with each deadline before it is tried. Raises InputError if none up to SLACK times the
    slowest client's latency is long enough.
    """
    if not 0 < share <= 1:
        raise ArgumentError("on_time", f"must be > 0 and <= 1, got {share:g}; use 0.9 for 90 % of the updates")
    deadline_s, limit_s = begin_s, max(begin_s, SLACK * fleet.slowest_s)
    best, best_s = 0.0, begin_s
    while deadline_s <= limit_s:
        before_try(deadline_s)
        found = simulate_on_time(fleet.at_deadline(deadline_s), deadline_s, settings, seed).share or 0.0
        if found >= share:
            return deadline_s
        best, best_s = max((best, best_s), (found, deadline_s))
        deadline_s = _a_tenth_more(deadline_s)
    raise ArgumentError(
        "on_time",
        f"must be at most {math.floor(best * 1000) / 1000:g}, the best of all deadlines up to {limit_s:g} s "
        f"(at {best_s:g} s), got {share:g}; ask for a smaller share, or make latency estimates more conservative: "
        'server.estimate = "quantile" with a larger estimate_quantile',
    )


def _a_tenth_more(seconds: float) -> float:
    """Return the next deadline to try, about 10 % longer and rounded to two digits."""
    unit = 10.0 ** (math.floor(math.log10(seconds)) - 1)
    return float(f"{max(1.1 * seconds, seconds + unit):.2g}")

"""How a deadline affects a fleet, without training: tiers, round lengths, the first rounds, and other deadlines."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lesson.clock.records import RoundRecord
from lesson.clock.simulate import simulate
from lesson.core.arrays import FloatArray, IntArray
from lesson.core.errors import InputError
from lesson.fleet.fleet import Fleet, columns_of, links_of
from lesson.fleet.tiers import UNREACHABLE, assign_tiers, check_deadline
from lesson.planning.on_time import OnTime, simulate_fedavg_round_s, simulate_on_time
from lesson.settings.settings import Settings
from lesson.strategies.lesson import Lesson

DEADLINES_S = (5.0, 10.0, 20.0, 30.0, 60.0)
"""Deadlines that a plan compares with its own, besides the slowest client's latency, if they suit the fleet."""

MAX_ROUNDS = 100_000
_SLOTS_LOOKED_AT = 50_000


@dataclass(frozen=True)
class TierRow:
    """One tier of a fleet.

    Attributes:
        tier: Number of the tier, from 1.
        clients: Clients in the tier.
        fastest_s: Latency of its fastest client in seconds.
        slowest_s: Latency of its slowest client in seconds.
        uploads_per_1000s: Updates that the clients of the tier upload in 1000 s.
        on_time: Share of updates started in this tier that arrive by the end of their slots; None if no slot has ended.
    """

    tier: int
    clients: IntArray
    fastest_s: float
    slowest_s: float
    uploads_per_1000s: float
    on_time: float | None


@dataclass(frozen=True)
class DeadlineRow:
    """How LESSON performs with one deadline in the long run.

    Attributes:
        deadline_s: The deadline in seconds.
        num_tiers: Number of tiers with clients.
        round_s: Round length in seconds; if times vary, the mean of a simulation.
        updates_per_1000s: Updates aggregated in 1000 s.
        staleness: Mean staleness of aggregated updates, in versions.
        served: Share of clients whose updates are ever aggregated.
        served_by_fedcs: The same with FedCS: the share of clients in tier 1.
        joules_per_update: Mean energy of an aggregated update; None if it is unknown.
        promoted: Whether a client was promoted because tier 1 would have been empty.
        on_time: Share of all updates that arrive by the end of their slots; None if no slot has ended.
    """

    deadline_s: float
    num_tiers: int
    round_s: float
    updates_per_1000s: float
    staleness: float
    served: float
    served_by_fedcs: float
    joules_per_update: float | None
    promoted: bool
    on_time: float | None


@dataclass(frozen=True)
class UploadRow:
    """What uploads of one size would do to the tiers of a fleet.

    Attributes:
        compression: Compressor and level, such as "qsgd 8"; "none" for an uncompressed model.
        bits: Size of an upload.
        fastest_s: Upload time of the client with the fastest link in seconds.
        median_s: Median upload time of reachable clients.
        slowest_s: Upload time of the reachable client with the slowest link.
        tiers: Number of clients by tier.
        fedavg_round_s: Round length of FedAvg in seconds.
    """

    compression: str
    bits: float
    fastest_s: float
    median_s: float
    slowest_s: float
    tiers: Mapping[int, int]
    fedavg_round_s: float


@dataclass(frozen=True, eq=False)
class Plan:
    """What a deadline does to a fleet, as returned by `lesson.plan` and shown by `lesson plan`.

    Attributes:
        fleet: The fleet as LESSON uses it, possibly with a client promoted into an empty tier 1.
        deadline_s: The deadline in seconds.
        tiers: Tier of each client, shape (num_clients,); 0 for an unreachable client.
        tier_rows: One row per tier.
        round_s: Round length in seconds of "lesson", "fedavg" and "fedcs"; None if the strategy cannot run. If times
            vary, those of LESSON and FedAvg are simulated means; FedAvg's is None if no simulated round ends.
        rounds: Records of LESSON's first rounds.
        deadlines: LESSON's long-run performance with this deadline and with others, in increasing order.
        uploads: The upload of the settings and, if asked for, that of each compressor; empty if upload times are
            unknown.
        varying: What makes times vary: settings, and sd_s in a file of latencies. If there is anything, latencies and
            tiers are the first estimates, on which update rates, staleness and energy are based.
    """

    fleet: Fleet
    deadline_s: float
    tiers: IntArray
    tier_rows: Sequence[TierRow]
    round_s: dict[str, float | None]
    rounds: Sequence[RoundRecord]
    deadlines: Sequence[DeadlineRow]
    uploads: Sequence[UploadRow] = ()
    varying: Sequence[str] = ()

    @property
    def num_unreachable(self) -> int:
        return int(np.count_nonzero(self.tiers == UNREACHABLE))

    @property
    def on_time(self) -> float | None:
        """Share of all updates that arrive on time; None without a deadline, or if no slot has ended."""
        return next((row.on_time for row in self.deadlines if row.deadline_s == self.deadline_s), None)

    def __repr__(self) -> str:
        lengths = ", ".join(f"{name} {seconds:g} s" for name, seconds in self.round_s.items() if seconds is not None)
        tiers = len(self.tier_rows)
        return (
            f"Plan({len(self.fleet)} clients, deadline {self.deadline_s:g} s: {tiers} tiers; round lengths: {lengths})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as values for strict JSON; unknown and infinite numbers are None."""
        fleet, names, everybody = self.fleet, self.fleet.names, np.arange(len(self.fleet))
        columns = columns_of(fleet, everybody) | links_of(fleet, everybody)
        values = {name: column or [None] * len(fleet) for name, column in columns.items()}
        return {
            "deadline_s": _finite(self.deadline_s),
            "clients": [
                {"client": names[client]}
                | {name: column[client] for name, column in values.items() if name not in ("name", "x_km", "y_km")}
                | {"tier": int(self.tiers[client]) or None}
                for client in range(len(fleet))
            ],
            "unreachable": [names[client] for client in np.flatnonzero(self.tiers == UNREACHABLE).tolist()],
            "promoted": None
            if fleet.promoted is None
            else {"client": names[fleet.promoted.client], "latency_s": fleet.promoted.latency_s},
            "tiers": [
                {"tier": row.tier, "clients": [names[who] for who in row.clients], "on_time": row.on_time}
                for row in self.tier_rows
            ],
            "round_s": self.round_s,
            "rounds": [
                {
                    "round": record.round,
                    "end_s": record.end_s,
                    "tiers": np.unique(self.tiers[record.merged]).tolist(),
                    "clients": [names[client] for client in np.sort(record.merged)],
                }
                for record in self.rounds
            ],
            "deadlines": [{name: _finite(value) for name, value in vars(row).items()} for row in self.deadlines],
            "uploads": [
                vars(row) | {"tiers": [{"tier": tier, "num_clients": number} for tier, number in row.tiers.items()]}
                for row in self.uploads
            ],
        }


def make_plan(
    fleet: Fleet,
    deadline_s: float,
    *,
    num_rounds: int = 12,
    settings: Settings | None = None,
    seed: int = 0,
    upload_bits: Mapping[str, float] | None = None,
) -> Plan:
    """Return the plan of a fleet for one deadline. `settings` may make times vary; disconnections are ignored.

    `upload_bits` is the size of an upload by compressor; that of the settings has priority.
    """
    settings = None if settings is None else settings.without_faults()
    check_deadline(deadline_s)
    if not 1 <= num_rounds <= MAX_ROUNDS:
        raise InputError(f"the number of rounds must be from 1 to {MAX_ROUNDS}, got {num_rounds}")
    slowest_s = fleet.slowest_s
    used = fleet.at_deadline(deadline_s)
    tiers = assign_tiers(used.latency_s, deadline_s)
    if not tiers.any():
        raise InputError(
            f"deadline_s must be longer, got {deadline_s:g}: every client would need more than 2^53 rounds"
        )
    rounds = list(simulate(Lesson(deadline_s), used, rounds=num_rounds, settings=settings, seed=seed))
    on_time = simulate_on_time(used, deadline_s, settings, seed)
    here = _deadline_row(used, tiers, deadline_s, on_time)
    others_s = {*_usual_deadlines_s(fleet), slowest_s} - {deadline_s}
    others = [evaluate_deadline(fleet, other_s, settings, seed) for other_s in others_s]
    usual = _usual_upload(fleet, settings)
    return Plan(
        fleet=used,
        deadline_s=deadline_s,
        tiers=tiers,
        tier_rows=_tier_rows(used, tiers, here.round_s, on_time),
        round_s={
            "lesson": here.round_s,
            "fedavg": simulate_fedavg_round_s(fleet, settings, seed),
            "fedcs": deadline_s if math.isfinite(deadline_s) and np.any(tiers == 1) else None,
        },
        rounds=rounds,
        deadlines=sorted([*others, *([here] if math.isfinite(deadline_s) else [])], key=lambda row: row.deadline_s),
        uploads=_upload_rows(fleet, deadline_s, usual | dict(upload_bits or {}) | usual),
        varying=fleet.varying(settings),
    )


def propose_deadline_s(fleet: Fleet) -> float:
    """Return a deadline to start with: 1.1 times what the fastest quarter of clients need, rounded up to two digits.

    Of the deadlines tried on the paper's fleet, those that a tenth to a third of the clients meet perform best.
    """
    latencies = np.sort(fleet.latency_s[fleet.reachable])
    needed_s = 1.1 * float(latencies[max(0, math.ceil(len(latencies) / 4) - 1)]) if len(latencies) else fleet.slowest_s
    return round_up(needed_s)


def round_up(seconds: float) -> float:
    """Return a time rounded up to two digits."""
    unit = 10.0 ** (math.floor(math.log10(seconds)) - 1)
    return float(f"{math.ceil(seconds / unit * (1 - 1e-9)) * unit:.2g}")


def _usual_deadlines_s(fleet: Fleet) -> list[float]:
    """Return deadlines to compare, in increasing order: DEADLINES_S or, if these do not suit the fleet, five others.

    Those go from a quarter of what the fastest tenth of the clients need to what the fastest nine tenths need, in equal
    ratios, rounded to one digit. An outlier changes neither.
    """
    low_s, high_s, reach_s = fleet.quantile_s(0.1) / 4, fleet.quantile_s(0.9), fleet.reach_s
    if DEADLINES_S[0] < high_s and DEADLINES_S[2] < reach_s < 10 * DEADLINES_S[-1]:
        return [deadline_s for deadline_s in DEADLINES_S if deadline_s < reach_s]
    spaced = (low_s * (high_s / low_s) ** (step / 4) for step in range(5))
    rounded = {float(f"{deadline_s:.1g}") for deadline_s in spaced}
    return sorted(deadline_s for deadline_s in rounded if deadline_s < fleet.slowest_s)


def evaluate_deadline(fleet: Fleet, deadline_s: float, settings: Settings | None = None, seed: int = 0) -> DeadlineRow:
    """Return tiers, update rate, staleness and energy of LESSON with a deadline. `settings` may make times vary."""
    used = fleet.at_deadline(deadline_s)
    tiers, on_time = assign_tiers(used.latency_s, deadline_s), simulate_on_time(used, deadline_s, settings, seed)
    return _deadline_row(used, tiers, deadline_s, on_time)


def evaluate_fedavg(fleet: Fleet, round_s: float | None = None) -> DeadlineRow:
    """Return the same for FedAvg, which waits for all clients; `round_s` is its mean round length if times vary."""
    row = evaluate_deadline(fleet, math.inf)
    if round_s is None:
        return row
    return replace(row, round_s=round_s, updates_per_1000s=row.updates_per_1000s * row.round_s / round_s)


def evaluate_fedcs(fleet: Fleet, deadline_s: float) -> DeadlineRow | None:
    """Return the same for FedCS, which uses tier 1 only; None if it cannot run."""
    used = fleet.at_deadline(deadline_s)
    tiers = assign_tiers(used.latency_s, deadline_s)
    if math.isinf(deadline_s) or not np.any(tiers == 1):
        return None
    return _deadline_row(used, np.where(tiers == 1, tiers, UNREACHABLE), deadline_s, OnTime(1.0, round_s=deadline_s))


def _deadline_row(fleet: Fleet, tiers: IntArray, deadline_s: float, on_time: OnTime) -> DeadlineRow:
    served = tiers != UNREACHABLE
    distinct, counts = np.unique(tiers[served], return_counts=True)
    in_one_tier = np.array_equal(distinct, [1]) and served.sum() == fleet.reachable.sum()
    round_s = on_time.round_s or (fleet.slowest_s if in_one_tier else deadline_s)
    frequency = 1 / tiers[served]
    joules = fleet.compute_j[served] + fleet.transmit_j[served]
    return DeadlineRow(
        deadline_s=deadline_s,
        num_tiers=len(distinct),
        round_s=round_s,
        updates_per_1000s=float(frequency.sum()) * 1000 / float(round_s),
        staleness=mean_staleness(distinct, counts),
        served=float(served.mean()),
        served_by_fedcs=float((tiers == 1).mean()),
        joules_per_update=_finite(float((joules * frequency).sum() / frequency.sum())),
        promoted=fleet.promoted is not None,
        on_time=on_time.share,
    )


def mean_staleness(tiers: IntArray, num_clients: IntArray) -> float:
    """Return the mean staleness of aggregated updates, given the tiers and the number of clients in each.

    A version is created in every round that is a multiple of some tier; an update of tier j that is aggregated in round
    k misses those strictly between k − j and k. The result is exact if tier 1 has clients. Otherwise versions are
    counted over many rounds; for tiers longer than these, their mean frequency is used. NaN without tiers.
    """
    rates = num_clients / tiers
    if not len(tiers):
        return math.nan
    if tiers[0] == 1:
        return float(np.sum(rates * (tiers - 1)) / np.sum(rates))
    horizon = int(min(64 * float(tiers[-1]), max(float(tiers[0]), _SLOTS_LOOKED_AT / float(np.sum(1 / tiers)))))
    versions = np.unique(np.concatenate([np.arange(tier, horizon + 1, tier) for tier in tiers]))
    slots = horizon // tiers  # of each tier; all versions up to the last are missed, but for one at the end of each
    missed = np.searchsorted(versions, slots * tiers, "right") / np.maximum(slots, 1) - 1
    missed = np.where(slots > 0, missed, (tiers - 1) * (len(versions) / horizon))
    return float(np.sum(rates * missed) / np.sum(rates))


def _usual_upload(fleet: Fleet, settings: Settings | None) -> dict[str, float]:
    """Return the name of the fleet's compressor and level, and the size of its uploads."""
    name = "none" if settings is None or not fleet.level_bits else f"{settings.upload.compression} {fleet.level:g}"
    return {name: fleet.upload_bits}


def _upload_rows(fleet: Fleet, deadline_s: float, sizes: Mapping[str, float]) -> list[UploadRow]:
    if np.any(np.isnan(fleet.upload_s[fleet.reachable])):
        return []
    rows = []
    for name, bits in sizes.items():
        sized = fleet.with_payload(bits)
        upload_s, tiers = (
            sized.upload_s[sized.reachable],
            assign_tiers(sized.at_deadline(deadline_s).latency_s, deadline_s),
        )
        found, counts = np.unique(tiers[tiers != UNREACHABLE], return_counts=True)
        times_s = float(upload_s.min()), float(np.median(upload_s)), float(upload_s.max())
        by_tier = dict(zip(found.tolist(), counts.tolist(), strict=True))
        rows.append(UploadRow(name, bits, *times_s, by_tier, sized.slowest_s))
    return rows


def _tier_rows(fleet: Fleet, tiers: IntArray, round_s: float, on_time: OnTime) -> list[TierRow]:
    order = np.argsort(tiers, kind="stable")
    distinct, begins = np.unique(tiers[order], return_index=True)
    rows = []
    for tier, clients in zip(distinct, np.split(order, begins[1:]), strict=True):
        if tier != UNREACHABLE:
            latencies: FloatArray = fleet.latency_s[clients]
            rate = len(clients) * 1000 / (int(tier) * round_s)
            spread_s = float(latencies.min()), float(latencies.max())
            rows.append(TierRow(int(tier), clients, *spread_s, rate, on_time.by_tier.get(int(tier))))
    return rows


def _finite(value: Any) -> Any:
    """Return the value; None for a float that is infinite or NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""Records of what happened in each round."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lesson.clock.rejections import Rejection
from lesson.core.arrays import FloatArray, IntArray
from lesson.fleet.fleet import Fleet

MAX_NAMES = 4
"""A line of the log names at most this many clients."""


@dataclass(eq=False)  # frozen ones take four times as long to create
class RoundRecord:
    """What happened in one round. Clients are identified by number, times are in seconds since the run began.

    Attributes:
        round: Number of the round, from 1.
        start_s: When the round opened: at the end of the previous round, or later if the server had to wait for
            clients.
        end_s: When the round closed.
        version: Model version after the round.
        started: Clients that started local training in this round.
        tiers: Tier in which each of them started; None if the strategy has no tiers.
        merged: Clients whose updates were aggregated in this round.
        merged_index: Index of each aggregated update among those of its client, from 0, in the order of `merged`.
        staleness: Number of versions created between each update's base version and its aggregation, in the order of
            `merged`.
        merged_started_s: When the local training of each aggregated update started, in the order of `merged`.
        merged_expected_s: Latency that the server expected for each aggregated update when it started.
        merged_arrived_s: When each aggregated update arrived.
        uploads: Number of updates that arrived in this round, including those rejected on arrival, but not duplicates.
        bytes_up: Bytes that clients uploaded in this round.
        bytes_down: Bytes that clients downloaded in this round.
        compute_j: Compute energy in joules of all updates that arrived, were canceled or were lost in this round; None
            if the fleet has no energies.
        transmit_j: Transmit energy in joules of the same updates; None if the fleet has no energies.
        note: Remarks for the user; empty if there are none.
        rejections: Updates rejected in this round; with real clients, also updates that the server stopped waiting for.
        excluded: Clients excluded at the end of this round.
        exhausted: Clients that disconnected for good in this round, because their energy budgets do not suffice for
            another update.
        misses: Number of updates that arrived in a later round than expected; None if times do not vary.
        retiered: Number of clients that started in a different tier than at their previous start; None if times do not
            vary.
        lost: Number of updates whose clients left or disconnected before the upload ended; None if times do not vary.
    """

    round: int
    start_s: float
    end_s: float
    version: int
    started: IntArray
    tiers: IntArray | None
    merged: IntArray
    merged_index: IntArray
    staleness: IntArray
    merged_started_s: FloatArray
    merged_expected_s: FloatArray
    merged_arrived_s: FloatArray
    uploads: int
    bytes_up: int
    bytes_down: int
    compute_j: float | None
    transmit_j: float | None
    note: str
    rejections: tuple[Rejection, ...] = ()
    excluded: tuple[int, ...] = ()
    exhausted: tuple[int, ...] = ()
    misses: int | None = None
    retiered: int | None = None
    lost: int | None = None

    @property
    def rejected(self) -> int:
        """Number of rejected updates."""
        return len(self.rejections)


def first_tier_note(fleet: Fleet) -> str:
    """Return a note about the client that was promoted into an empty tier 1; an empty string if none was."""
    if fleet.promoted is None:
        return ""
    client, real_s = fleet.promoted.client, fleet.promoted.latency_s
    return (
        f"tier 1 would be empty: the latency of the fastest client, {fleet.names[client]}, "
        f"is set to {fleet.latency_s[client]:g} s instead of {real_s:.4g} s"
    )


MAX_NAMED = 5
"""Maximum number of clients that a note lists by name."""


def exclusion_note(excluded: Mapping[int, str], names: Sequence[int | str], exclude_after: int) -> str:
    """Return a note that says which clients were excluded in a round, and why."""
    notes = []
    for reason in dict.fromkeys(excluded.values()):
        who = [str(names[client]) for client, why in excluded.items() if why == reason]
        more = f" and {len(who) - MAX_NAMED} more" if len(who) > MAX_NAMED else ""
        after = f"{exclude_after} consecutive rejected updates" if exclude_after > 1 else "a rejected update"
        noun = "client" if len(who) == 1 else "clients"
        notes.append(f"excluded {noun} {', '.join(who[:MAX_NAMED])}{more} after {after}: {reason}")
    return "; ".join(notes)


def exhaustion_note(exhausted: Sequence[int], names: Sequence[int | str]) -> str:
    """Return a note about clients whose energy budgets do not suffice for another update."""
    budget = "its energy budget" if len(exhausted) == 1 else "their energy budgets"
    return f"{named_clients(names, exhausted)} cannot afford another update with {budget}"


def named_clients(names: Sequence[int | str], clients: Iterable[int]) -> str:
    """Return clients as text for a log line, such as "clients ana, ben": the first few names, and how many more."""
    shown = [str(names[client]) for client in clients]
    if len(shown) > MAX_NAMES:
        shown[MAX_NAMES:] = [f"{len(shown) - MAX_NAMES} more"]
    return f"client{'' if len(shown) == 1 else 's'} {', '.join(shown)}".rstrip()


def rejection_line(round: int, names: Sequence[int | str], rejection: Rejection) -> str:
    """Return the log line of a rejected update."""
    detail = f" ({rejection.detail})" if rejection.detail else ""
    return f"round {round}: rejected update from client {names[rejection.client]}: {rejection.reason}{detail}"

"""What is written down about a round."""

from dataclasses import dataclass

from lesson.clock.rejections import Rejection
from lesson.core.arrays import FloatArray, IntArray
from lesson.fleet.fleet import Fleet


@dataclass(frozen=True, eq=False)
class RoundRecord:
    """What happened in one round. Clients are numbers; energy is None where the fleet does not know it."""

    round: int
    start_s: float
    end_s: float
    version: int
    """Of the model after the round."""
    started: IntArray
    merged: IntArray
    staleness: IntArray
    """Versions that were made since each merged update's base, in the order of `merged`."""
    merged_started_s: FloatArray
    merged_expected_s: FloatArray
    merged_arrived_s: FloatArray
    """When their work began, how long it was expected to take, and when they arrived."""
    uploads: int
    """Updates that arrived in this round, those that were rejected at once and those that came twice among them."""
    bytes_up: int
    bytes_down: int
    compute_j: float | None
    transmit_j: float | None
    """Energy of the work that arrived or was broken off in this round."""
    note: str
    rejections: tuple[Rejection, ...] = ()
    """Updates that were rejected in this round; of real clients also those that were given up."""
    excluded: tuple[int, ...] = ()
    """Clients that take part no more from now on."""
    misses: int | None = None
    """Updates that arrived after the end of a round by which they had been expected; None where times do not vary."""
    retiered: int | None = None
    """Clients that started in another tier than the time before."""
    lost: int | None = None
    """Updates whose clients left or dropped out before they were through."""

    @property
    def rejected(self) -> int:
        """How many updates were rejected."""
        return len(self.rejections)


def first_tier_note(fleet: Fleet) -> str:
    """What was done about an empty tier 1, for people; empty if nothing."""
    if fleet.promoted is None:
        return ""
    client, real_s = fleet.promoted.client, fleet.promoted.latency_s
    return (
        f"tier 1 would be empty: the fastest client, {fleet.names[client]}, "
        f"is taken as {fleet.latency_s[client]:g} s instead of {real_s:.4g} s"
    )

"""Rejected updates and the reasons for rejecting them."""

from dataclasses import dataclass, field

WRONG_ARRAYS, WRONG_SHAPE, WRONG_TYPE = "wrong arrays", "wrong shape", "wrong type"
WRONG_METRICS, UNREADABLE = "wrong metrics", "unreadable"
NOT_FINITE, TOO_FAR, NO_WEIGHT, ALREADY_SEEN = "not finite", "norm too large", "no weight", "already received"
OF_CONTENT = frozenset(
    {WRONG_ARRAYS, WRONG_SHAPE, WRONG_TYPE, WRONG_METRICS, UNREADABLE, NOT_FINITE, TOO_FAR, NO_WEIGHT}
)
"""Reasons that count toward exclusion: faults in the content of an update. Transport faults do not count."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A rejected update."""

    client: int
    index: int
    """Index of the client's local training, from 0."""
    reason: str
    """One of the reasons above, or a transport fault."""
    detail: str = field(default="", compare=False)
    """Details for the log; empty if there are none."""

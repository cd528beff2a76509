"""Tiers of clients, and the rounds in which they upload, Eq. (7) to (9)."""

import numpy as np

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.errors import InputError

TOLERANCE = 1e-12
"""Relative tolerance of every comparison with a deadline, so that a latency of exactly j deadlines is tier j."""

UNREACHABLE = 0
"""Tier of a client whose updates never arrive."""

_MAX_TIER = 2.0**53


def check_deadline(deadline_s: float) -> float:
    """Return the deadline; raise InputError unless it is > 0. Infinity is allowed."""
    if not deadline_s > 0:
        raise InputError(f"deadline_s must be > 0, got {deadline_s}")
    return deadline_s


def assign_tiers(latency_s: FloatArray, deadline_s: float) -> IntArray:
    """Return the tier of each client, shape (num_clients,). Eq. (7): the smallest j with t ≤ j·τ·(1 + 10⁻¹²).

    Args:
        latency_s: Latency t of each client in seconds.
        deadline_s: Deadline τ in seconds, > 0; may be inf.

    Returns:
        Tiers from 1. A client with an infinite latency, or one of 2⁵³ or more deadlines, is in tier 0 (UNREACHABLE).
    """
    check_deadline(deadline_s)
    with np.errstate(over="ignore", invalid="ignore"):
        tiers = np.ceil(latency_s / (deadline_s * (1 + TOLERANCE)))
        # The division rounds, so the quotient may be off by one at a tier's boundary; the comparison is exact.
        tiers -= latency_s <= (tiers - 1) * deadline_s * (1 + TOLERANCE)
        tiers += latency_s > tiers * deadline_s * (1 + TOLERANCE)
        tiers = np.maximum(tiers, 1.0)
    return np.where(tiers < _MAX_TIER, tiers, UNREACHABLE).astype(np.int64)


def client_to_promote(latency_s: FloatArray, deadline_s: float, ensure_first_tier: bool) -> int | None:
    """Return the client that is treated as meeting the deadline: with `ensure_first_tier`, the fastest one.

    None if tier 1 is not empty, or if all tiers are.
    """
    tiers = assign_tiers(latency_s, deadline_s)
    if not ensure_first_tier or np.any(tiers == 1) or np.all(tiers == UNREACHABLE):
        return None
    return int(np.argmin(latency_s))


def due_round(started_round: IntArray | int, tiers: IntArray) -> IntArray:
    """Return the round at whose end an update is due, shape (num_updates,). Eqs. (8) and (9): the j-th from its start.

    A client of tier j that starts in round 1, and again after each round in which its update is due, uploads in the
    rounds with k % j == 0.

    Args:
        started_round: Round in which the client started, from 1.
        tiers: Tier j of the client when it started.
    """
    return started_round + tiers - 1

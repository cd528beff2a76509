"""What a run on Flower says: it is in the log of the run, which `flwr run --stream` shows."""

import logging

from lesson.clock.federation import Federation
from lesson.fleet.tiers import assign_tiers

logger = logging.getLogger("flwr")
tell = logger.info


def tell_clients(federation: Federation, deadline_s: float) -> None:
    """Say how long each client takes as far as is known now, in which tier that is, and what was rejected."""
    fleet = federation.fleet
    tiers = assign_tiers(fleet.latency_s, deadline_s).tolist()
    for name, latency_s, tier in zip(fleet.names, fleet.latency_s.tolist(), tiers, strict=True):
        if tier:  # else it has never been there
            tell(f"client {name}: {latency_s:.1f} s, tier {tier}")
    tell(f"rejected: {', '.join(f'{count} × {fault}' for fault, count in federation.rejected.items()) or 'nothing'}")

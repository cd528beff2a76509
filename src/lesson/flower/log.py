"""The log of a run on Flower, which `flwr run --stream` shows."""

import logging

from lesson.clock.federation import Federation
from lesson.fleet.tiers import assign_tiers

logger = logging.getLogger("flwr")
tell = logger.info


def tell_clients(federation: Federation, deadline_s: float) -> None:
    """Log the current latency estimate and tier of each client, and how many updates were rejected and why."""
    fleet = federation.fleet
    tiers = assign_tiers(fleet.latency_s, deadline_s).tolist()
    for name, latency_s, tier in zip(fleet.names, fleet.latency_s.tolist(), tiers, strict=True):
        if tier:  # tier 0: the client never connected
            tell(f"client {name}: {latency_s:.1f} s, tier {tier}")
    tell(f"rejected: {', '.join(f'{count} × {fault}' for fault, count in federation.rejected.items()) or 'nothing'}")

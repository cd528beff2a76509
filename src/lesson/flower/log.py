"""What a run on Flower says: it is in the log of the run, which `flwr run --stream` shows."""

import logging

from lesson.federation import Federation
from lesson.tiers import assign_tiers

logger = logging.getLogger("flwr")
tell = logger.info


def tell_clients(federation: Federation, deadline_s: float) -> None:
    """Say how long each client takes as far as is known now, in which tier that is, and what was refused."""
    fleet = federation.fleet
    for client, tier in enumerate(assign_tiers(fleet.latency_s, deadline_s).tolist()):
        tell(
            f"client {fleet.names[client]}: {fleet.latency_s[client]:.1f} s, {f'tier {tier}' if tier else 'not there'}"
        )
    tell(f"refused: {', '.join(f'{count} × {fault}' for fault, count in federation.refused.items()) or 'nothing'}")

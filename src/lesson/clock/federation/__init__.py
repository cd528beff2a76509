"""Rounds of real clients: the simulator's round loop and strategies, with local training on remote clients.

On the virtual clock, the fleet's latencies determine when updates arrive, and the loop waits in real time until it has
them. On the wall clock, rounds close in real time, and the server estimates latencies from the arrivals it observes.
"""

from lesson.clock.federation.base import Federation
from lesson.clock.federation.clients import Clients, Event, Joined, Left, Reply
from lesson.clock.federation.virtual import VirtualFederation
from lesson.clock.federation.wall import WallFederation

__all__ = ["Clients", "Event", "Federation", "Joined", "Left", "Reply", "VirtualFederation", "WallFederation"]

"""Rounds of real clients: the loop and the strategies of the simulator, with updates that come from elsewhere.

On the virtual clock a fleet says when updates arrive, and the loop waits as long as it takes to have them. On the wall
a round is over when its time is, updates arrive when they do, and the server learns from that how long clients take.
"""

from lesson.clock.federation.base import Federation
from lesson.clock.federation.clients import Clients, Event, Joined, Left, Reply
from lesson.clock.federation.virtual import VirtualFederation
from lesson.clock.federation.wall import WallFederation

__all__ = ["Clients", "Event", "Federation", "Joined", "Left", "Reply", "VirtualFederation", "WallFederation"]

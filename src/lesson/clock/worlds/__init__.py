"""Worlds, which provide time, arrivals and latency estimates to the round loop."""

from lesson.clock.faults import Disconnections
from lesson.clock.worlds.base import Collected, World, closing_time
from lesson.clock.worlds.clients import Clients, Event, Joined, Left, Reply, Returned
from lesson.clock.worlds.nominal import NominalWorld
from lesson.clock.worlds.remote import RemoteWorld
from lesson.clock.worlds.varying import VaryingWorld
from lesson.clock.worlds.wall import WallWorld
from lesson.fleet.fleet import Fleet
from lesson.settings.settings import Settings


def make_world(fleet: Fleet, settings: Settings, seed: int) -> NominalWorld | VaryingWorld:
    """Return the simulated world of a fleet: varying if times vary or clients disconnect, otherwise nominal."""
    disconnections = Disconnections(settings.faults, seed) if settings.faults.disconnects else None
    if fleet.varying(settings) or disconnections is not None:
        return VaryingWorld(fleet, settings, seed, disconnections)
    return NominalWorld(fleet, settings.server.overhead_s)


__all__ = [
    "Clients",
    "Collected",
    "Event",
    "Joined",
    "Left",
    "NominalWorld",
    "RemoteWorld",
    "Reply",
    "Returned",
    "VaryingWorld",
    "WallWorld",
    "World",
    "closing_time",
    "make_world",
]

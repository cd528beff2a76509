"""Who takes part in a run of an app with its own clients, and which latencies are assumed until they are measured."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from flwr.serverapp import Grid

from lesson.core.arrays import FloatArray
from lesson.core.errors import InputError
from lesson.fleet.fleet import Fleet, draw_fleet, make_fleet
from lesson.flower.identity import Node, Roster, latencies_by_name, names_of
from lesson.flower.replies import tell, warn
from lesson.settings.settings import Settings

WAIT_EVERY_S = 5.0
SPARE = 16
"""On the wall clock, this many clients can join later, plus as many as there are nodes at the start."""
Latencies = FloatArray | dict[str, float] | None
"""Latencies that the app gives, in order of registration or by name of the client."""


@dataclass(frozen=True, eq=False)
class Participants:
    """The clients of a run when it begins or is resumed."""

    node_of: dict[int, int]
    """Node of each connected client."""
    latency_s: FloatArray
    """Assumed latency of each client in seconds; inf for those that are not connected and may join later."""
    names: Sequence[int | str]
    roster: Roster | None = None
    """Which node is which client; None if nobody can join later."""
    assumed_s: Callable[[int], float] = lambda _: math.nan
    """Returns the latency to assume for a client that joins later."""

    def fleet(self, local_steps: int) -> Fleet:
        """Return a fleet with the assumed latencies; every client has one sample, as its replies give its weight."""
        unknown, once = np.full(len(self.latency_s), np.nan), np.ones(len(self.latency_s), dtype=np.int64)
        settings = Settings(training={"local_steps": local_steps})
        fleet = make_fleet(settings, self.names, once, unknown, unknown.copy(), self.latency_s)
        return replace(fleet, batch_samples=np.zeros_like(once))  # only the clients know


def wait_for_nodes(grid: Grid, min_nodes: int, timeout_s: float) -> list[Node]:
    """Return the connected nodes, in order of registration, as soon as there are `min_nodes`.

    Raises InputError if there are still too few after `timeout_s`.
    """
    until_s = time.monotonic() + timeout_s
    while len(nodes := list(grid.get_nodes())) < min_nodes:
        wait = f"min_available_nodes is {min_nodes}, but only {len(nodes)} nodes are connected"
        if (left_s := until_s - time.monotonic()) <= 0:
            raise InputError(wait)
        tell(f"waiting for nodes: {wait}")
        time.sleep(min(WAIT_EVERY_S, left_s))
    return sorted(nodes, key=lambda node: (node.registered_at, node.node_id))


def checked_latencies(given: Sequence[float] | FloatArray | Mapping[str, float] | None) -> Latencies:
    """Return a copy of latencies; raise InputError if one is not > 0."""
    if given is None:
        return None
    values = np.array(list(given.values()) if isinstance(given, Mapping) else given, dtype=np.float64).reshape(-1)
    if not np.all(values > 0):
        raise InputError("latency_s must be > 0 for every client")
    return dict(zip(map(str, given), values.tolist(), strict=True)) if isinstance(given, Mapping) else values


def on_the_wall(
    nodes: Sequence[Node], given: Latencies, deadline_s: float, num_nodes: int | None = None, path: Path | None = None
) -> Participants:
    """Return the clients of a run in real time.

    A client whose latency is not given is assumed to meet the deadline. `num_nodes` is the number of nodes with which a
    resumed run was started, and `path` the file that lists its clients.
    """
    roster = Roster(2 * (num_nodes or len(nodes)) + SPARE, path)
    is_new = not roster.nodes
    node_of = {client: node for node, client in roster.admit(nodes, [node.node_id for node in nodes]).items()}
    clients, latency_s = list(node_of), np.full(roster.num_clients, np.inf)
    latency_s[clients] = deadline_s
    by_name = given if isinstance(given, dict) else {}
    if isinstance(given, dict):
        latency_s[clients], missing = latencies_by_name(given, [roster.names[client] for client in clients], deadline_s)
        if missing:
            warn(f"latency_s has no value for {', '.join(missing)}; assuming {deadline_s:g} s")
    elif given is not None and is_new:  # otherwise, the checkpoint has newer estimates
        latency_s[clients] = _one_for_each(given, len(clients))

    def assumed_s(client: int) -> float:
        return by_name.get(str(roster.names[client]), deadline_s)

    return Participants(node_of, latency_s, roster.names, roster, assumed_s)


def in_simulated_time(nodes: Sequence[Node], given: Latencies, deadline_s: float, seed: int) -> Participants:
    """Return the clients of a run in simulated time: all nodes, in order of registration, which is that of partitions.

    If no latencies are given, they are drawn as for the paper's clients.
    """
    if given is None:
        latency_s = draw_fleet(Settings(), len(nodes), seed).latency_s.copy()
        tell("drawing latencies as for the paper's wireless clients; latency_s=[…] sets others, one value per node")
    elif isinstance(given, dict):
        latency_s = np.array(latencies_by_name(given, names_of(nodes).values(), deadline_s)[0])
    else:
        latency_s = _one_for_each(given, len(nodes))
    return Participants({client: node.node_id for client, node in enumerate(nodes)}, latency_s, range(len(nodes)))


def _one_for_each(latency_s: FloatArray, num_nodes: int) -> FloatArray:
    """Return latencies, one for each node; raise InputError if there are more or fewer."""
    if len(latency_s) != num_nodes:
        raise InputError(f"latency_s must have one value per node, got {len(latency_s)} for {num_nodes} nodes")
    return latency_s

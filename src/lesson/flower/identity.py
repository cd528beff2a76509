"""Assigns nodes to clients: a device keeps its name and its client number when it reconnects or a run is resumed.

A node gets a new id with every registration, so ids do not identify a device. Its key does, and so does its name, which
an operator gives it: `flwr supernode register KEY --name pi-3`.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from pydantic import TypeAdapter

from lesson.core.errors import InputError, printable
from lesson.core.files import write_whole
from lesson.runs.read_back import read_json

NODES = "nodes.json"
"""File in a run folder that lists the clients of a run on Flower."""
DIGITS, MAX_NAME = 8, 60


class Node(Protocol):
    """The attributes of a node in Flower's grid that are used here."""

    @property
    def node_id(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def public_key(self) -> bytes: ...

    @property
    def registered_at(self) -> str: ...


def names_of(nodes: Iterable[Node]) -> dict[int, str]:
    """Return the name of each node, by node id: its registered name, else a fingerprint of its key, else its id.

    If nodes have the same registered name, the fingerprint or the id is added to it.
    """
    nodes = list(nodes)
    shared = Counter(node.name for node in nodes)
    return {node.node_id: _name(node, is_shared=shared[node.name] > 1) for node in nodes}


def _name(node: Node, *, is_shared: bool) -> str:
    short = f"key-{key_of(node)[:DIGITS]}" if node.public_key else str(node.node_id)
    if not node.name:
        return short
    name = printable(node.name, MAX_NAME)
    return f"{name} ({short})" if is_shared else name


def key_of(node: Node) -> str:
    """Return the SHA-256 digest of a node's public key as hexadecimal digits; empty if it has none."""
    return hashlib.sha256(node.public_key).hexdigest() if node.public_key else ""


@dataclass(frozen=True)
class KnownNode:
    """The node of a client: its name, the digest of its key and its last id."""

    name: str
    key: str
    node_id: int


@dataclass(eq=False)
class Roster:
    """The clients of a run, numbered in the order in which their nodes were first seen.

    With a `path`, the clients listed in this file are known from the start, and `save` updates the file.
    """

    num_clients: int
    """Largest number of clients."""
    path: Path | None = None

    def __post_init__(self) -> None:
        self.nodes: list[KnownNode] = []
        """The node of each client."""
        self.names: list[int | str] = list(range(self.num_clients))
        """Name of each client; a number for those that may join later."""
        self._is_saved = True
        if self.path is not None:
            kind = TypeAdapter(list[KnownNode])
            for known in kind.validate_python(read_json(self.path, kind, "remove the folder and rerun", [])):
                self._add(known)

    def admit(self, nodes: Sequence[Node], connected: Collection[int] = ()) -> dict[int, int]:
        """Return the client of each node, by node id; new nodes become clients while there is room.

        A node is a known client if it has its id, its key or its registered name. `connected` lists the ids of all
        connected nodes, none of which loses its client to another one: a second node with the same key is left out, and
        a second one with the same name is a new client.
        """
        found, names = dict[int, int](), names_of(nodes)
        for node in nodes:
            name = names[node.node_id]
            client = self._find(node, name, connected)
            if client is None and len(self.nodes) < self.num_clients:
                name = _name(node, is_shared=True) if name in self.names else name
                found[node.node_id] = self._add(KnownNode(name, key_of(node), node.node_id))
            elif client is not None and not self._is_elsewhere(client, node, connected):
                found[node.node_id] = client
                self.nodes[client] = KnownNode(str(self.names[client]), key_of(node), node.node_id)
        self._is_saved &= not found
        return found

    def save(self) -> None:
        """Write the file if something has changed, so that a resumed run knows the clients again."""
        if self.path is not None and not self._is_saved:
            write_whole(self.path, f"{json.dumps([asdict(known) for known in self.nodes], indent=1)}\n".encode())
            self._is_saved = True

    def _find(self, node: Node, name: str, connected: Collection[int]) -> int | None:
        """Return the client to which a node belongs; None if it is a new one."""
        for client, known in enumerate(self.nodes):
            if known.node_id == node.node_id or (known.key and known.key == key_of(node)):
                return client
        for client, known in enumerate(self.nodes):
            if node.name and known.name == name and known.node_id not in connected:
                return client
        return None

    def _is_elsewhere(self, client: int, node: Node, connected: Collection[int]) -> bool:
        """Return whether another node of this client is connected."""
        return self.nodes[client].node_id != node.node_id and self.nodes[client].node_id in connected

    def _add(self, known: KnownNode) -> int:
        if len(self.nodes) >= self.num_clients:
            raise InputError(f"{self.path} lists more than {self.num_clients} clients; remove the folder and rerun")
        self.nodes.append(known)
        self.names[len(self.nodes) - 1] = known.name
        return len(self.nodes) - 1


def latencies_by_name(
    latency_s: Mapping[str, float], names: Iterable[int | str], default_s: float
) -> tuple[list[float], list[str]]:
    """Return the latency of each named client in seconds, and the clients for which `default_s` is assumed.

    Raises InputError if no client has one of the names.
    """
    wanted = [str(name) for name in names]
    missing = [name for name in wanted if name not in latency_s]
    if len(missing) == len(wanted):
        there, given = ", ".join(wanted[:5]), ", ".join(list(latency_s)[:5])
        raise InputError(f"latency_s must have names of connected nodes ({there}, …), got {given or 'none'}")
    return [float(latency_s.get(name, default_s)) for name in wanted], missing

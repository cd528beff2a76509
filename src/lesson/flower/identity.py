"""Which node is which client: devices keep their name when they reconnect, and after a resume.

A node gets a new id with every registration, so ids do not identify a device. Its key does, and so does its name, which
an operator gives it: `flwr supernode register KEY --name pi-3`.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from lesson.core.errors import printable

DIGITS, MAX_NAME = 8, 60


class Node(Protocol):
    """What Flower's grid tells about a node."""

    @property
    def node_id(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def public_key(self) -> bytes: ...


def names_of(nodes: Iterable[Node]) -> dict[int, str]:
    """Return the name of each node, by node id: its registered name, else a fingerprint of its key, else its id.

    Nodes with the same registered name are told apart by their fingerprint or id.
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

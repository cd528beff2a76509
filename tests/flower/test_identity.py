"""Which node is which client: names, keys, and nodes that come back under another id."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from lesson import InputError
from lesson.flower.identity import Roster, key_of, names_of


@dataclass(frozen=True)
class Device:
    """A node as the grid lists it."""

    node_id: int
    name: str = ""
    public_key: bytes = b""


def test_names_of_nodes() -> None:
    """By the registered name, else the key, else the id; equal names are made distinct. printf first | sha256sum begins
    with a7937b64."""
    nodes = [Device(7, "pi-3", b"first"), Device(8, "", b"first"), Device(9)]
    assert names_of(nodes) == {7: "pi-3", 8: "key-a7937b64", 9: "9"}
    assert names_of([Device(7, "pi", b"first"), Device(8, "pi")]) == {7: "pi (key-a7937b64)", 8: "pi (8)"}
    (name,) = names_of([Device(7, "a\nb" + 99 * "x")]).values()
    assert name.startswith("a\\nbxxx")
    assert len(name) == 60


def admitted(roster: Roster, *nodes: Device, connected: Sequence[int] = ()) -> list[int]:
    return list(roster.admit(nodes, connected).values())


def test_key_identifies_a_client_that_rejoins() -> None:
    """Node 5 has the key of client 1, whose node 8 is gone; an id that was never seen is a new client."""
    roster = Roster(4)
    assert admitted(roster, Device(7, "", b"a"), Device(8, "", b"b")) == [0, 1]
    assert admitted(roster, Device(5, "", b"b"), Device(6, "", b"c"), connected=[5, 6, 7]) == [1, 2]
    assert [known.node_id for known in roster.nodes] == [7, 5, 6]
    assert roster.names == [f"key-{key_of(Device(0, '', key))[:8]}" for key in (b"a", b"b", b"c")] + [3]


def test_device_keeps_its_name_with_a_new_key() -> None:
    roster = Roster(4)
    admitted(roster, Device(7, "pi", b"a"), Device(8, "phone", b"b"))
    assert admitted(roster, Device(9, "phone", b"new"), connected=[7, 9]) == [1]
    assert roster.names == ["pi", "phone", 2, 3]
    assert roster.nodes[1].key == key_of(Device(9, "phone", b"new"))


def test_connected_nodes_keep_their_clients() -> None:
    """While node 7 is connected, another node with its name is a new client, and one with its key is left out."""
    roster = Roster(4)
    admitted(roster, Device(7, "pi", b"a"))
    assert admitted(roster, Device(8, "pi"), Device(9, "", b"a"), connected=[7, 8, 9]) == [1]
    assert roster.names[:2] == ["pi", "pi (8)"]
    assert [known.node_id for known in roster.nodes] == [7, 8]


def test_full_roster_admits_nobody_else() -> None:
    roster = Roster(1)
    assert roster.admit([Device(7), Device(8)]) == {7: 0}
    assert roster.names == ["7"]


def test_clients_are_recognized_after_a_restart(tmp_path: Path) -> None:
    """The nodes come in another order, and with new ids; the third is new."""
    roster = Roster(3, tmp_path / "nodes.json")
    admitted(roster, Device(7, "pi", b"a"), Device(8, "", b"b"))
    assert not (tmp_path / "nodes.json").exists(), "nobody knows yet whether the run begins"
    roster.save()
    again = Roster(3, tmp_path / "nodes.json")
    assert admitted(again, Device(1, "tv", b"c"), Device(2, "", b"b"), Device(3, "pi", b"a")) == [2, 1, 0]
    assert again.names[0] == "pi"
    assert again.names[2] == "tv"


def test_damaged_file_is_an_error(tmp_path: Path) -> None:
    node = '{"name": "a", "key": "", "node_id": 1}'
    for text, message in (
        ("[", "is damaged"),
        ('[{"name": "pi"}]', "is damaged"),
        (f"[{node}, {node}]", "more than 1"),
    ):
        (tmp_path / "nodes.json").write_text(text)
        with pytest.raises(InputError, match=message):
            Roster(1, tmp_path / "nodes.json")

"""Only what Flower publishes is used: its private modules and class names change between releases."""

import ast
from pathlib import Path

import pytest
from flwr.clientapp import ClientApp
from flwr.common.constant import HEARTBEAT_INTERVAL_INF, HEARTBEAT_MAX_INTERVAL, ErrorCode

from helpers.local_grid import MakeGrid
from lesson import InputError
from lesson.clock.worlds.clients import LOST, NO_REPLY
from lesson.flower.post import FAULTS
from lesson.flower.replies import NO_HEARTBEAT_S, in_simulation
from lesson.flower.server import clock_of

ROOT = Path(__file__).parent.parent.parent
PUBLIC = {
    "flwr",
    "flwr.app",
    "flwr.clientapp",
    "flwr.clientapp.mod",
    "flwr.serverapp",
    "flwr.serverapp.strategy",
    "flwr.simulation",
}
SOURCES = [
    path
    for folder in ("src/lesson", "examples", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "flwr" in path.read_text(encoding="utf-8")
]


def imported(path: Path) -> set[str]:
    """Return the modules of Flower that a file imports."""
    modules = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            modules.add(node.module)
            if node.module == "flwr":
                modules |= {f"flwr.{name.name}" for name in node.names}
    return {name for name in modules if name.split(".")[0] == "flwr"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_are_public(path: Path) -> None:
    assert imported(path) <= PUBLIC
    assert "InMemoryGrid" not in path.read_text(encoding="utf-8")


def test_all_modules_on_flower_are_checked() -> None:
    assert {"strategy.py", "post.py", "replies.py", "client_app.py"} <= {path.name for path in SOURCES}


def test_codes_of_errors_are_those_of_flower() -> None:
    """Flower names its codes in a private module only, so the numbers are repeated."""
    assert {
        ErrorCode.LOAD_CLIENT_APP_EXCEPTION: "client error",
        ErrorCode.CLIENT_APP_RAISED_EXCEPTION: "client error",
        ErrorCode.MESSAGE_UNAVAILABLE: NO_REPLY,
        ErrorCode.REPLY_MESSAGE_UNAVAILABLE: NO_REPLY,
        ErrorCode.NODE_UNAVAILABLE: LOST,
        ErrorCode.CLIENT_APP_CRASHED: "client crashed",
    } == FAULTS


def test_simulated_nodes_are_those_without_heartbeats() -> None:
    """Flower's SuperLink refuses real nodes with longer intervals, so no node can pass for a simulated one."""
    assert HEARTBEAT_MAX_INTERVAL < NO_HEARTBEAT_S < HEARTBEAT_INTERVAL_INF


def test_clock_follows_the_nodes(make_grid: MakeGrid) -> None:
    grid = make_grid(ClientApp(), 2)
    assert (in_simulation(grid), clock_of("auto", grid, 1.0)) == (False, "wall")
    grid.simulated = True
    assert (in_simulation(grid), clock_of("auto", grid, 1.0)) == (True, "virtual")
    assert clock_of("wall", grid, 1.0) == "wall"


def test_clock_needs_a_node(make_grid: MakeGrid) -> None:
    grid = make_grid(ClientApp(), 2)
    grid.offline |= set(grid.nodes)
    assert not in_simulation(grid)
    assert clock_of("virtual", grid, 0.01) == "virtual"
    with pytest.raises(InputError, match="only 0 nodes are connected"):
        clock_of("auto", grid, 0.01)

"""Only what Flower publishes is used: its private modules and class names change between releases."""

import re
from pathlib import Path

from flwr.common.constant import HEARTBEAT_INTERVAL_INF, HEARTBEAT_MAX_INTERVAL

from lesson.flower.replies import NO_HEARTBEAT_S

ROOT = Path(__file__).parent.parent.parent
PUBLIC = {"flwr", "flwr.app", "flwr.clientapp", "flwr.clientapp.mod", "flwr.serverapp", "flwr.serverapp.strategy"}
PUBLIC |= {"flwr.simulation"}
IMPORT = re.compile(r"^ *(?:from|import) (flwr\b[\w.]*)", re.MULTILINE)


def test_imports_are_public() -> None:
    paths = [path for folder in ("src/lesson", "examples", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    imports = {path: set(IMPORT.findall(path.read_text())) for path in paths}
    assert {path: found - PUBLIC for path, found in imports.items() if found - PUBLIC} == {}
    assert {"strategy.py", "post.py", "replies.py", "client_app.py"} <= {path.name for path in imports if imports[path]}


def test_simulated_nodes_are_those_without_heartbeats() -> None:
    """Flower's SuperLink refuses real nodes with longer intervals, so no node can pass for a simulated one."""
    assert HEARTBEAT_MAX_INTERVAL < NO_HEARTBEAT_S < HEARTBEAT_INTERVAL_INF

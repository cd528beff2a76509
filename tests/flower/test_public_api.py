"""Only what Flower publishes is used: its private modules and class names change between releases."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PUBLIC = {"flwr", "flwr.app", "flwr.clientapp", "flwr.clientapp.mod", "flwr.serverapp", "flwr.serverapp.strategy"}
PUBLIC |= {"flwr.simulation", "flwr.common.constant"}  # error codes are published nowhere else
IMPORT = re.compile(r"^ *(?:from|import) (flwr\b[\w.]*)", re.MULTILINE)


def test_imports_are_public() -> None:
    paths = [path for folder in ("src/lesson", "examples", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    imports = {path: set(IMPORT.findall(path.read_text())) for path in paths}
    assert {path: found - PUBLIC for path, found in imports.items() if found - PUBLIC} == {}
    assert {"strategy.py", "clients.py", "replies.py", "client_app.py"} <= {
        path.name for path in imports if imports[path]
    }

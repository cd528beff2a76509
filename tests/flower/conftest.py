import threading
from collections.abc import Iterator
from typing import Any

import pytest
from flwr.app import Array
from flwr.clientapp import ClientApp
from flwr.common import NDArray
from flwr.supercore.task_identity import TaskIdentity
from local_grid import LocalGrid, MakeGrid

from threads import one_thread  # noqa: F401  # for every test here


@pytest.fixture(autouse=True)
def arrays_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nodes are threads, two of them in numpy's use of `ast` can upset each other: cpython gh-106905."""
    read, lock = Array.numpy, threading.Lock()

    def numpy(array: Array) -> NDArray:
        with lock:
            return read(array)

    monkeypatch.setattr(Array, "numpy", numpy)


@pytest.fixture(autouse=True)
def in_a_run() -> None:
    """Flower makes messages only where there is a run."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


@pytest.fixture
def make_grid() -> Iterator[MakeGrid]:
    """Makes grids that are closed when the test is over."""
    grids = []

    def make(app: ClientApp, num_nodes: int, run_config: dict[str, Any] | None = None) -> LocalGrid:
        grids.append(LocalGrid(app, num_nodes, run_config))
        return grids[-1]

    yield make
    for grid in grids:
        grid.close()

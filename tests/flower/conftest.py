from collections.abc import Iterator
from typing import Any

import pytest
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from helpers.local_grid import LocalGrid, MakeGrid, arrays_read_one_by_one


@pytest.fixture(autouse=True)
def arrays_are_read_one_by_one() -> Iterator[None]:
    with arrays_read_one_by_one():
        yield


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

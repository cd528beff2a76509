import threading
from collections.abc import Iterator
from typing import Any

import pytest
from flwr.app import Array
from flwr.clientapp import ClientApp
from flwr.common import NDArray
from flwr.supercore.task_identity import TaskIdentity

from helpers.local_grid import LocalGrid, MakeGrid
from lesson.learn.data import Dataset, load_dataset


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


@pytest.fixture(scope="session")
def images() -> Dataset:
    """The first 600 training and 200 test images of MNIST."""
    mnist = load_dataset("mnist", None)
    return Dataset(
        "mnist", mnist.train_images[:600], mnist.train_labels[:600], mnist.test_images[:200], mnist.test_labels[:200]
    )


@pytest.fixture
def few_images(images: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Server, clients and simulator all train on these few images."""
    for user in ("flower.client.dataset_of", "flower.server.dataset_of", "learn.build.dataset_of"):
        monkeypatch.setattr(f"lesson.{user}", lambda *_: images)

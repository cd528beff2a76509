from collections.abc import Iterator
from typing import Any

import pytest
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from helpers.local_grid import LocalGrid, MakeGrid, arrays_read_one_by_one
from lesson.learn.data import Dataset, load_dataset
from lesson.learn.models import mnist_net
from lesson.learn.task import Task
from lesson.learn.tasks import image_task


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


@pytest.fixture(scope="session")
def few_task() -> Task:
    """The first 600 training and 200 test images of MNIST."""
    mnist = load_dataset("mnist", None)
    images = Dataset(
        "mnist", mnist.train_images[:600], mnist.train_labels[:600], mnist.test_images[:200], mnist.test_labels[:200]
    )
    return image_task(images, mnist_net)


@pytest.fixture
def few_images(few_task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """Server, clients and simulator all train on these few images, unless they are given another task."""
    for user in ("flower.client", "flower.server"):
        monkeypatch.setattr(f"lesson.{user}.resolve_task", lambda given, *_: few_task if given is None else given)
    monkeypatch.setattr("lesson.learn.build.task_of", lambda *_: few_task)

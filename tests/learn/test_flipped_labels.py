"""Clients that train on flipped labels."""

import numpy as np
import pytest
import torch

from helpers.small_tasks import tiny_workload
from lesson import Task
from lesson.clock.faults import corrupting_clients
from lesson.core.errors import InputError
from lesson.learn.partition import Partition
from lesson.learn.robust.labels import with_flipped_labels
from lesson.settings.faults import FaultSettings

LABELS = np.array([0, 1, 2, 3, 3, 2, 1, 0, 0, 0])


def _task(targets: np.ndarray = LABELS) -> Task:
    inputs = np.zeros((len(targets), 2), dtype=np.float32)
    loss = None if targets.dtype.kind == "i" else torch.nn.functional.mse_loss
    return Task(train=(inputs, targets), test=(inputs, targets), model=lambda: torch.nn.Linear(2, 4), loss=loss)


def _parts(*parts: list[int]) -> Partition:
    return Partition.of([np.array(part) for part in parts])


def test_labels_by_hand() -> None:
    """Class c of 4 becomes 3 − c at the corrupting client; other clients, test data and unused samples keep theirs."""
    settings, holdings = FaultSettings(corrupting_clients=0.5, flipped_labels=1.0), _parts([0, 1, 2, 3], [4, 5, 6, 7])
    task = _task()
    (hostile,) = np.flatnonzero(corrupting_clients(settings, 2, seed=0))
    flipped = with_flipped_labels(task, holdings, settings, seed=0)
    expected = {0: [3, 2, 1, 0, 3, 2, 1, 0, 0, 0], 1: [0, 1, 2, 3, 0, 1, 2, 3, 0, 0]}[int(hostile)]
    assert flipped.train[1].tolist() == expected
    assert flipped.test[1].tolist() == LABELS.tolist() == task.train[1].tolist()


def test_the_given_share_is_flipped() -> None:
    settings = FaultSettings(flipped_labels=0.3)
    task, holdings = _task(np.zeros(2000, dtype=np.int64)), _parts([*range(1000)], [*range(1000, 2000)])
    labels = with_flipped_labels(task, holdings, settings, seed=0).train[1]
    assert int((labels != 0).sum()) == 0  # with a single class there is no wrong label
    two_classes = _task(np.arange(2000) % 2)
    labels = with_flipped_labels(two_classes, holdings, settings, seed=0).train[1]
    assert int((labels != two_classes.train[1]).sum()) == pytest.approx(600, abs=80)
    assert not torch.equal(labels, with_flipped_labels(two_classes, holdings, settings, seed=1).train[1])


def test_a_workload_has_the_flipped_labels_of_the_hostile_clients() -> None:
    plain = tiny_workload(4)
    hostile = tiny_workload(4, flipped_labels=1.0)
    held = torch.from_numpy(np.concatenate([hostile.holdings[client] for client in range(4)]))
    num_classes = plain.task.num_classes
    assert num_classes is not None
    assert hostile.train_targets[held].tolist() == (num_classes - 1 - plain.train_targets[held]).tolist()


@pytest.mark.parametrize(
    ("task", "holdings", "message"),
    [
        (_task(np.ones((4, 4), dtype=np.float32)), _parts([0], [1]), "a task whose targets are not class labels"),
        (_task(), _parts([0, 1], [1, 2]), "if clients share samples"),
    ],
)
def test_labels_that_cannot_be_flipped(task: Task, holdings: Partition, message: str) -> None:
    with pytest.raises(InputError, match=message):
        with_flipped_labels(task, holdings, FaultSettings(flipped_labels=1.0), seed=0)

"""Wrong labels of training samples, as set in [faults]."""

from dataclasses import replace

import numpy as np
import torch

from lesson.clock.faults import corrupting_clients, has_flipped_label
from lesson.core.errors import InputError
from lesson.learn.partition import Holdings, Partition
from lesson.learn.task import Task
from lesson.settings.faults import FaultSettings


def with_flipped_labels(task: Task, holdings: Holdings, settings: FaultSettings, seed: int) -> Task:
    """Return the task with flipped labels at the corrupting clients: class c of n becomes n - 1 - c.

    The test data and the labels of all other clients stay as they are.
    """
    labels = task.labels
    if labels is None:
        raise InputError("[faults] flipped_labels must be 0 for a task whose targets are not class labels")
    if not isinstance(holdings, Partition) or len(np.unique(holdings.samples)) < len(holdings.samples):
        raise InputError("[faults] flipped_labels must be 0 if clients share samples, as with split = 'dirichlet-pool'")
    num_classes = task.num_classes or int(labels.max()) + 1
    clients = np.flatnonzero(corrupting_clients(settings, len(holdings), seed))
    samples = np.concatenate([holdings[client] for client in clients.tolist()] or [holdings.samples[:0]])
    samples = samples[has_flipped_label(settings, samples, seed)]
    flipped = labels.copy()
    flipped[samples] = num_classes - 1 - flipped[samples]
    return replace(task, train=(task.train[0], torch.from_numpy(flipped)))

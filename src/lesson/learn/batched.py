"""Several local steps for a whole cohort: worker processes that share the data, each training part of the clients.

Each client is trained exactly as the reference trainer does it, on a single thread, so the bits are the same.
"""

import os
from multiprocessing.connection import Connection

import numpy as np
import torch
from torch import Tensor
from torch import multiprocessing as processes

from lesson.learn.reference import train_client, weighted_sum
from lesson.learn.task import Task, Work


class BatchedTrainer:
    """Trains cohorts on all cores."""

    def __init__(self, task: Task, num_workers: int | None = None) -> None:
        self.task = task
        context = processes.get_context("spawn")
        num_parameters = len(task.initial_vector())
        self._base = torch.empty(num_parameters)
        self._models = torch.empty(len(task.partition), num_parameters)
        for tensor in (self._base, self._models, task.train_images, task.train_labels):
            tensor.share_memory_()  # type: ignore[no-untyped-call]
        self._pipes: list[Connection] = []
        self._workers = []
        for _ in range(num_workers or os.cpu_count() or 1):
            ours, theirs = context.Pipe()
            worker = context.Process(target=_work, args=(task, self._base, self._models, theirs), daemon=True)
            worker.start()
            theirs.close()
            self._pipes.append(ours)
            self._workers.append(worker)

    def cohort(self, base: Tensor, work: Work) -> Tensor:
        """The weighted sum of the models of a cohort that started from `base`."""
        sums = torch.zeros_like(base)
        for begin in range(0, len(work), len(self._models)):  # a client may have several updates in a cohort
            part = work[begin : begin + len(self._models)]
            sums += self._train(base, part)
        return sums

    def close(self) -> None:
        """End the workers."""
        for pipe in self._pipes:
            pipe.close()
        for worker in self._workers:
            worker.join()

    def _train(self, base: Tensor, work: Work) -> Tensor:
        self._base.copy_(base)
        order = np.argsort(-work.local_steps, kind="stable")
        shares = [order[first :: len(self._pipes)] for first in range(len(self._pipes))]
        for pipe, rows in zip(self._pipes, shares, strict=True):
            pipe.send((rows, work[rows]))
        for pipe in self._pipes:
            if (problem := pipe.recv()) is not None:
                raise RuntimeError(f"a training worker failed: {problem}")
        return weighted_sum(self._models[: len(work)], work)


def _work(task: Task, base: Tensor, models: Tensor, pipe: Connection) -> None:
    """Train what is asked for, until nobody asks any more."""
    torch.set_num_threads(1)
    replica = task.replica()
    while True:
        try:
            rows, work = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            for place, row in enumerate(rows):
                models[row] = train_client(task, replica, base, work[place : place + 1])
            pipe.send(None)
        except Exception as error:
            pipe.send(repr(error))

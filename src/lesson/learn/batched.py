"""Training of several local steps on all CPU cores: worker processes share the data and divide the clients.

A worker trains each client as the reference trainer does, on a single thread, so results are bit-identical.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize

import numpy as np
import torch
from torch import Tensor
from torch import multiprocessing as processes

from lesson.core.cores import num_cores
from lesson.core.errors import LACK_OF_MEMORY, RemoteError, RunStoppedError, traceback_of
from lesson.core.interrupts import STOP_SIGNALS
from lesson.learn.cohort import COLUMNS, Cohort
from lesson.learn.process import configure_process, main_hidden
from lesson.learn.reference import BLOCK, models_of, parts_of, sums_of, train_client
from lesson.learn.sharing import Packed, pack
from lesson.learn.workload import Workload

END_S = 2.0
CHECK_PARENT_EVERY_S = 1.0


class BatchedTrainer:
    """Trains cohorts on all CPU cores; raises InputError if the task cannot be copied into other processes."""

    def __init__(self, workload: Workload, num_workers: int | None = None) -> None:
        packed = pack(workload)
        context = processes.get_context("spawn")
        num_values = workload.template.num_values
        self._bases, self._models = torch.empty(BLOCK, num_values), torch.empty(BLOCK, num_values)
        for tensor in (self._bases, self._models, *packed.tensors):
            tensor.share_memory_()
        self._pipes: list[Connection] = []
        self._workers: list[BaseProcess] = []
        self._end = Finalize(self, _kill, (self._workers,), exitpriority=1)  # workers ignore SIGTERM
        for _ in range(num_workers or num_cores()):
            ours, theirs = context.Pipe()
            args = (os.getpid(), packed, self._bases, self._models, theirs)
            worker = context.Process(target=_work, args=args, daemon=True)
            with main_hidden():
                worker.start()
            theirs.close()
            self._pipes.append(ours)
            self._workers.append(worker)

    def sums(self, cohorts: Sequence[Cohort]) -> list[Tensor]:
        return sums_of(cohorts, self._trained_parts(cohorts))

    def models(self, cohorts: Sequence[Cohort]) -> list[Tensor]:
        return models_of(cohorts, self._trained_parts(cohorts))

    def close(self) -> None:
        """Kill the workers: they have nothing to save and would take a second or more to exit."""
        self._end()
        for pipe in self._pipes:
            pipe.close()
        for worker in self._workers:
            worker.join(END_S)

    def _why_ended(self) -> str:
        """Return why a training process no longer answers, and what to do."""
        for worker in self._workers:
            worker.join(END_S / len(self._workers))
        if any(worker.exitcode == -getattr(signal, "SIGKILL", 9) for worker in self._workers):
            return f"a training process was killed, {LACK_OF_MEMORY}, then resume the run from its last checkpoint"
        return "a training process has ended unexpectedly; resume the run from its last checkpoint"

    def _trained_parts(self, cohorts: Sequence[Cohort]) -> Iterator[tuple[int, Cohort]]:
        """Yield the trained parts of cohorts in the order of `parts_of`.

        Small cohorts are trained together to keep all workers busy. The models of a part are valid until the next one
        is requested.
        """
        for block in _blocks_of(parts_of(cohorts)):
            self._train([part for _, part in block])
            for (place, part), end in zip(block, accumulate(len(part) for _, part in block), strict=True):
                models = self._models[end - len(part) : end]
                yield place, replace(part, trained=models if end == len(part) else models.clone())

    def _train(self, cohorts: Sequence[Cohort]) -> None:
        """Train cohorts of at most BLOCK rows in all, and write the models of their rows into `_models`."""
        for place, cohort in enumerate(cohorts):
            self._bases[place].copy_(cohort.base)
        base = np.repeat(np.arange(len(cohorts)), [len(cohort) for cohort in cohorts])
        columns = {name: np.concatenate([getattr(cohort, name) for cohort in cohorts]) for name in COLUMNS}
        order = np.argsort(-columns["local_steps"], kind="stable")
        shares = [order[first :: len(self._pipes)] for first in range(len(self._pipes))]
        try:
            for pipe, rows in zip(self._pipes, shares, strict=True):
                pipe.send((rows, base[rows], {name: column[rows] for name, column in columns.items()}))
            problems = [pipe.recv() for pipe in self._pipes]
        except (OSError, EOFError):
            raise RunStoppedError(self._why_ended()) from None
        for problem, where in filter(None, problems):
            cause = RemoteError(where) if where else None
            raise RunStoppedError(f"a training process failed: {problem}") from cause


def _blocks_of(parts: Sequence[tuple[int, Cohort]]) -> list[list[tuple[int, Cohort]]]:
    """Return consecutive parts in blocks of at most BLOCK rows."""
    blocks = list[list[tuple[int, Cohort]]]()
    room = 0
    for part in parts:
        if len(part[1]) > room:
            blocks.append([])
            room = BLOCK
        blocks[-1].append(part)
        room -= len(part[1])
    return blocks


def _kill(workers: Sequence[BaseProcess]) -> None:
    for worker in workers:
        worker.kill()


def _work(parent: int, packed: Packed, bases: Tensor, models: Tensor, pipe: Connection) -> None:
    """Train what arrives on the pipe until it closes. Signals to the process group are left to the parent process."""
    threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    configure_process()
    workload: Workload = packed.unpack()
    replica = workload.replica()
    while True:
        try:
            rows, base, columns = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            for place, row in enumerate(rows):
                one = {name: column[place : place + 1] for name, column in columns.items()}
                models[row] = train_client(workload, replica, Cohort(bases[base[place]], **one))
            pipe.send(None)
        except Exception as error:
            problem = str(error) if isinstance(error, RunStoppedError) else repr(error)
            pipe.send((problem, traceback_of(error)))


def _exit_with(parent: int) -> None:
    """End this process soon after its parent, also in the middle of training: a killed parent cannot say so."""
    while os.getppid() == parent:
        time.sleep(CHECK_PARENT_EVERY_S)
    os._exit(1)

"""Threads that work on parts of one computation, each with a model of its own.

Parts are cut by rules that do not know how many threads there are, and added in order: the result has the same bits on
any number of cores.
"""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import local
from typing import Any

import torch
from torch import Tensor

from lesson.learn.models import ModelFactory, Replica


class Threads:
    """As many threads as cores, unless told otherwise; torch itself uses one thread in each."""

    def __init__(self, factory: ModelFactory, count: int | None = None) -> None:
        self._factory = factory
        self._pool = ThreadPoolExecutor(count or os.cpu_count(), initializer=torch.set_num_threads, initargs=(1,))
        self._own = local()

    def submit(self, work: Callable[..., Any], vector: Tensor, *args: Any) -> "Future[Any]":
        """Begin work(replica, *args) in some thread, on a replica that has loaded the vector."""
        return self._pool.submit(self._run, work, vector, *args)

    def close(self) -> None:
        """Let the threads go."""
        self._pool.shutdown(cancel_futures=True)

    def _run(self, work: Callable[..., Any], vector: Tensor, *args: Any) -> Any:
        if not hasattr(self._own, "replica"):
            self._own.replica = Replica(self._factory)
        self._own.replica.load(vector)
        return work(self._own.replica, *args)

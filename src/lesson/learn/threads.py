"""Threads for the parts of one computation, each with its own model.

The division into parts does not depend on the number of threads, and results are combined in order, so they are
bit-identical on any number of cores.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import local
from typing import Any

import torch
from torch import Tensor

from lesson.core.cores import num_cores
from lesson.learn.template import Replica, Template


class Threads:
    """A pool of `count` threads, by default one per core; torch uses a single thread in each."""

    def __init__(self, template: Template, count: int | None = None) -> None:
        self._template = template
        self._pool = ThreadPoolExecutor(count or num_cores(), initializer=torch.set_num_threads, initargs=(1,))
        self._own = local()

    def submit(self, work: Callable[..., Any], vector: Tensor, *args: Any) -> "Future[Any]":
        """Schedule work(replica, *args) on a thread, with a replica that has loaded the vector."""
        return self._pool.submit(self._run, work, vector, *args)

    def close(self) -> None:
        """Stop the threads and cancel what has not started."""
        self._pool.shutdown(cancel_futures=True)

    def _run(self, work: Callable[..., Any], vector: Tensor, *args: Any) -> Any:
        if not hasattr(self._own, "replica"):
            self._own.replica = Replica(self._template)
        self._own.replica.load(vector)
        return work(self._own.replica, *args)

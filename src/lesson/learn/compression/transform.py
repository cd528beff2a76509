"""What the server decodes from simulated uploads, in place of the trained models."""

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch
from torch import Tensor

from lesson.clock.rejections import Rejection
from lesson.core.arrays import IntArray
from lesson.core.cores import num_cores
from lesson.core.random import stream
from lesson.core.state import Arrays
from lesson.learn.cohort import Cohort
from lesson.learn.compression.base import Compressor, Random, UpdateLayout, decoded, encoded, uniforms
from lesson.learn.counters import key, words
from lesson.learn.device import to_device

CACHED_VALUES = 1 << 18
"""Number of values that are compressed together on a CPU, so that they and a few copies fit into a core's cache."""


class CompressUploads:
    """Compresses updates, with error feedback if the compressor has it.

    With error feedback, a client adds what its earlier messages left out, its residual, to its next update. Residuals
    exist only for clients whose updates have been decoded. An upload that is lost or dropped leaves its client's
    residual as it was: what the message would have sent of it is sent later. The local training is lost, as it is
    without compression. A rejection by NormGuard, which comes later, does not restore the residual.

    Only trained parameters are compressed: buffers, such as the variances of BatchNorm, come after them and are sent as
    they are.
    """

    may_reject = False
    note = "uploads are compressed, so that the model of each client is trained on its own, which takes longer"

    def __init__(self, compressor: Compressor, sizes: Sequence[int], seed: int, num_threads: int | None = None) -> None:
        self._compressor, self._sizes, self._seed = compressor, list(sizes), seed
        self._key = key(seed, "compression")
        self._pool = ThreadPoolExecutor(num_threads or num_cores(), initializer=torch.set_num_threads, initargs=(1,))
        self._residuals = dict[int, Tensor]()
        """What the messages of each client have left out so far, shape (num_parameters,)."""

    @property
    def arrays(self) -> Arrays:
        """The residuals, and the clients that have them."""
        clients = sorted(self._residuals)
        rows = [self._residuals[client].cpu().numpy() for client in clients]
        stacked = np.stack(rows) if rows else np.empty((0, sum(self._sizes)), dtype=np.float32)
        return {"residual_of": np.array(clients, dtype=np.int64), "residuals": stacked}

    def restore(self, arrays: Arrays, device: torch.device) -> None:
        """Continue with what `arrays` returned."""
        rows = [torch.tensor(row, device=device) for row in arrays["residuals"]]
        self._residuals = dict(zip(arrays["residual_of"].tolist(), rows, strict=True))

    def __call__(self, cohorts: Sequence[Cohort]) -> tuple[list[Cohort], list[Rejection]]:
        """Return the cohorts with the models that the server decodes, in place of the trained ones."""
        for cohort in cohorts:
            self._compress(cohort)
        return list(cohorts), []

    def _compress(self, cohort: Cohort) -> None:
        """Replace the trained models of a cohort by those that the server decodes."""
        is_cuda, num_values = cohort.models.is_cuda, cohort.models.shape[1]
        for rows in _one_per_client(cohort):
            for level in np.unique(cohort.level[rows]).tolist():
                some = rows[cohort.level[rows] == level]
                at_once = len(some) if is_cuda else max(1, CACHED_VALUES // num_values)
                blocks = [some[begin : begin + at_once] for begin in range(0, len(some), at_once)]
                run = map if is_cuda else self._pool.map  # a GPU stays with this thread's stream
                for _ in run(partial(self._replace, cohort, level), blocks):
                    pass

    def _replace(self, cohort: Cohort, level: float, rows: IntArray) -> None:
        """Replace the models of some rows, one per client and all of one level, and the residuals of the clients."""
        size, places = sum(self._sizes), _as_slice(rows)
        block, base = cohort[places], cohort.base[:size]
        layout = UpdateLayout(self._sizes, level, self._random(block))
        updates = block.models[:, :size]
        updates -= base  # in place, as all below: fresh memory for large models would take longer than the arithmetic
        residuals = self._residuals_of(block) if self._compressor.error_feedback else []
        if residuals:
            updates += torch.stack(residuals)
        received = decoded(self._compressor, encoded(self._compressor, updates, layout), layout)
        for residual, left_out in zip(residuals, updates - received if residuals else (), strict=True):
            residual.copy_(left_out)
        torch.add(base, received, out=updates)
        if not isinstance(places, slice):
            cohort.models[places] = block.models

    def _residuals_of(self, cohort: Cohort) -> list[Tensor]:
        """Return the residual of each row's client; zeros for a client that has none yet."""
        clients = cohort.client.tolist()
        for client in clients:
            if client not in self._residuals:
                self._residuals[client] = cohort.base.new_zeros(sum(self._sizes))
        return [self._residuals[client] for client in clients]

    def _random(self, cohort: Cohort) -> Random:
        """Return the random numbers of these updates, which depend only on the seed, the client and the index.

        Those on a GPU are others.
        """
        if cohort.base.is_cuda:
            ids = [to_device(column, cohort.base.device.type) for column in (cohort.client, cohort.index)]
            calls = itertools.count()

            def draw(count: int) -> Tensor:
                call = torch.full_like(ids[0], next(calls))
                return (words(self._key, count, *ids, call) >> 8).to(torch.float32) * 2.0**-24

            return draw
        updates = zip(cohort.client.tolist(), cohort.index.tolist(), strict=True)
        streams = [stream(self._seed, "compression", client, index) for client, index in updates]
        return lambda count: uniforms(streams, count)


def _one_per_client(cohort: Cohort) -> list[IntArray]:
    """Return the rows in groups without repeated clients: a client's residual depends on its earlier updates."""
    turns = np.arange(len(cohort)) - np.searchsorted(cohort.client, cohort.client)
    return [np.flatnonzero(turns == turn) for turn in range(int(turns.max(initial=-1)) + 1)]


def _as_slice(rows: IntArray) -> slice | IntArray:
    """Return rows that follow each other as a slice, which copies nothing."""
    begin, end = int(rows[0]), int(rows[-1]) + 1
    return slice(begin, end) if end - begin == len(rows) else rows

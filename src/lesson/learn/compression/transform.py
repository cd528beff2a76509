"""What the server decodes from simulated uploads, in place of the trained models."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lesson.clock.rejections import Rejection
from lesson.core.arrays import IntArray
from lesson.core.random import RepeatedStream
from lesson.core.state import Arrays
from lesson.learn.cohort import Cohort
from lesson.learn.compression.base import Compressor, Random, UpdateLayout, decoded, encoded
from lesson.learn.counters import key, words
from lesson.learn.device import to_device

CACHED_VALUES = 1 << 17
"""Number of values that are compressed together on a CPU: they and a few copies of them fit into a core's cache."""


class CompressUploads:
    """Compresses updates, with error feedback if the compressor has it.

    With error feedback, a client adds what its earlier messages left out, its residual, to its next update. Residuals
    exist only for clients whose updates have been aggregated. An upload that is lost or dropped leaves its client's
    residual as it was: what the message would have sent of it is sent later. The local training is lost, as it is
    without compression.

    Only trained parameters are compressed: buffers, such as the variances of BatchNorm, come after them and are sent as
    they are.
    """

    may_reject = False
    note = "uploads are compressed, so that the model of each client is trained on its own, which takes longer"

    def __init__(self, compressor: Compressor, sizes: Sequence[int], seed: int) -> None:
        self._compressor, self._sizes = compressor, list(sizes)
        self._stream, self._key = RepeatedStream(seed, "compression"), key(seed, "compression")
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
        """Return the cohorts with the models that the server decodes."""
        return [self._compressed(cohort) for cohort in cohorts], []

    def _compressed(self, cohort: Cohort) -> Cohort:
        models = torch.empty_like(cohort.models)
        at_once = len(cohort) if models.is_cuda else max(1, CACHED_VALUES // models.shape[1])
        for rows in _one_per_client(cohort):
            for level in np.unique(cohort.level[rows]).tolist():
                some = rows[cohort.level[rows] == level]
                for begin in range(0, len(some), at_once):
                    block = _as_slice(some[begin : begin + at_once])
                    models[block] = self._decoded(cohort[block], level)
        return replace(cohort, trained=models)

    def _decoded(self, cohort: Cohort, level: float) -> Tensor:
        """Return what the server decodes from these updates, with one row per client and all of the same level."""
        models, size, compressor = cohort.models, sum(self._sizes), self._compressor
        base, layout = cohort.base[:size], UpdateLayout(self._sizes, level, self._random(cohort))
        updates = models[:, :size] - base
        residuals = self._residuals_of(cohort) if compressor.error_feedback else []
        if residuals:
            updates += torch.stack(residuals)
        received = decoded(compressor, encoded(compressor, updates, layout), layout)
        for residual, left_out in zip(residuals, updates - received if residuals else (), strict=True):
            residual.copy_(left_out)
        return torch.cat([base + received, models[:, size:]], dim=1)

    def _residuals_of(self, cohort: Cohort) -> list[Tensor]:
        """Return the residual of each row's client; zeros for a client that has none yet."""
        for client in cohort.client.tolist():
            if client not in self._residuals:
                self._residuals[client] = cohort.base.new_zeros(sum(self._sizes))
        return [self._residuals[client] for client in cohort.client.tolist()]

    def _random(self, cohort: Cohort) -> Random:
        """Return the random numbers of these updates, which depend only on the seed, the client and the index."""
        clients, index = cohort.client, cohort.index
        if cohort.base.is_cuda:
            ids = [to_device(column, cohort.base.device.type) for column in (clients, index)]
            return lambda count: (words(self._key, count, *ids) >> 8).to(torch.float32) * 2**-24
        return lambda count: torch.from_numpy(np.stack(self._draws(clients, index, count)))

    def _draws(self, clients: IntArray, index: IntArray, count: int) -> list[npt.NDArray[np.float32]]:
        pairs = zip(clients.tolist(), index.tolist(), strict=True)
        return [self._stream.at(*pair).random(count, dtype=np.float32) for pair in pairs]


def _one_per_client(cohort: Cohort) -> list[IntArray]:
    """Return the rows in groups without repeated clients: a client's residual depends on its earlier updates."""
    turns = np.arange(len(cohort)) - np.searchsorted(cohort.client, cohort.client)
    return [np.flatnonzero(turns == turn) for turn in range(int(turns.max(initial=-1)) + 1)]


def _as_slice(rows: IntArray) -> slice | IntArray:
    """Return rows that follow each other as a slice, which copies nothing."""
    begin, end = int(rows[0]), int(rows[-1]) + 1
    return slice(begin, end) if end - begin == len(rows) else rows

"""The rows that are trained together for several lanes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lesson.core.arrays import FloatArray, IntArray
from lesson.learn.cohort import Cohort
from lesson.learn.cuda.batched import Gradients, MinibatchesInTurn, with_gradients
from lesson.learn.cuda.graphs import Graph, GraphInputs, Precision
from lesson.learn.device import to_device
from lesson.learn.lanes.program import NO_SLOT, Rows
from lesson.learn.lanes.slots import Slots
from lesson.learn.lanes.tables import LaneTables
from lesson.learn.minibatch import NO_SAMPLE, sample_weights
from lesson.learn.workload import Workload


class OpenLane(NamedTuple):
    """A lane of a machine."""

    number: int
    workload: Workload
    """With the clients of the lane."""
    slots: IntArray
    """Slot of the machine for each slot of the lane, and NO_SLOT at the end."""


@dataclass(frozen=True, eq=False)
class JoinedRows:
    """Rows of several lanes, with the columns of `Rows`."""

    numbers: IntArray
    scale: FloatArray
    slots: IntArray
    """Slots of the machine."""
    lane: IntArray
    """Number of each row's lane."""

    @classmethod
    def of(cls, parts: Sequence[tuple[OpenLane, Rows]]) -> Self:
        return cls(
            np.concatenate([rows.numbers for _, rows in parts], axis=1),
            np.concatenate([rows.scale for _, rows in parts]),
            np.concatenate([lane.slots[rows.slots] for lane, rows in parts], axis=1),
            np.repeat([lane.number for lane, _ in parts], [len(rows.scale) for _, rows in parts]),
        )

    def __len__(self) -> int:
        return len(self.scale)

    def __getitem__(self, rows: slice | IntArray) -> "JoinedRows":
        return JoinedRows(self.numbers[:, rows], self.scale[rows], self.slots[:, rows], self.lane[rows])

    def as_cohort(self) -> Cohort:
        """Return the rows, each of one client, as a cohort of which only the columns matter."""
        client, index, first, most, local_steps = self.numbers[:, :, 0]
        nothing = np.full(len(self), np.nan)
        return Cohort(torch.empty(0), client, index, self.scale[:, 0], local_steps, nothing, first, most, nothing)


class PackedRows:
    """The graph of one step for rows of several clients each, all of which start from the row's model."""

    def __init__(
        self, workload: Workload, precision: Precision, shape: tuple[int, int], tables: LaneTables, slots: Slots
    ) -> None:
        self._workload, self._shape, self._tables, self._precision = workload, shape, tables, precision
        num_rows, num_clients = shape
        self._slots, self._models = slots, workload.initial_vector().repeat(num_rows, 1)
        self._numbers = torch.zeros(8, num_rows * num_clients, dtype=torch.int64, device=workload.device)
        self._numbers[6:] = NO_SLOT
        self._inputs = GraphInputs(self._numbers)
        self._graph: Graph[None]
        with_gradients(workload, precision, self._record)

    def run(self, rows: JoinedRows) -> None:
        """Write the gradient of each row into its slot."""
        self._inputs.send(partial(self._write, rows))
        self._graph.replay()

    @property
    def num_samples(self) -> int:
        """Number of samples in a full graph."""
        return self._shape[0] * self._shape[1] * self._workload.batch_size

    def replay(self) -> None:
        """Compute the gradients of the rows of the last run again."""
        self._graph.replay()

    def close(self) -> None:
        """Free the graph."""
        self._graph.close()

    def _write(self, rows: JoinedRows, whole: IntArray, real: FloatArray) -> None:
        used = rows.scale.size
        whole[:6, used:] = 0
        whole[:4, :used] = rows.numbers[:4].reshape(4, -1)
        whole[4, :used] = np.repeat(rows.lane, self._shape[1])
        real[5, :used] = rows.scale.reshape(-1)
        whole[6:] = NO_SLOT
        whole[6:, : len(rows)] = rows.slots

    def _record(self, gradients: Gradients) -> None:
        body = partial(self._step, gradients)
        self._graph = Graph(body, self._precision, device=self._workload.device)

    def _step(self, gradients: Gradients) -> None:
        start, result = self._numbers[6:, : len(self._models)]
        self._slots.gather(start, self._models)
        client, index, first, most_samples, lane = self._numbers[:5]
        scale = self._numbers[5].view(torch.float64)
        sampler = self._tables.sampler(lane)
        (padded,) = sampler.batches(client, index, 1, first=first, most_samples=most_samples)
        samples = self._workload.padded_batch((client, index), padded, first, sampler.keys.dropout)
        weights = sample_weights(padded, scale).view(self._shape[0], -1)
        parts = gradients(gradients.replica.named_views(self._models), samples, weights)
        self._slots.scatter(result, torch.cat([part.flatten(1) for part in parts.values()], dim=1))


def minibatches_of(
    block: Cohort, lane: IntArray, workloads: Mapping[int, Workload], width: int
) -> Callable[[int], Tensor]:
    """Return a function that returns the minibatches of a step for clients of several lanes, padded to `width`."""
    rows = {number: np.flatnonzero(lane == number) for number in np.unique(lane).tolist()}
    parts = [MinibatchesInTurn(workloads[number], block[places]) for number, places in rows.items()]
    where = np.argsort(np.concatenate(list(rows.values())))
    drawn = [torch.empty(0)] * len(parts)

    def draw(step: int) -> Tensor:
        for place, part in enumerate(parts):
            if step < part.num_steps:  # later ones are not used
                drawn[place] = functional.pad(part(step), (0, width - part.width), value=NO_SAMPLE)
        joined = torch.cat(drawn)
        return joined[to_device(where, joined.device.type)]

    return draw

"""Executes waves of many lanes on one device.

A row is always trained in a graph of the same shape, so that its result does not depend on the rows beside it, on their
number or on its place. It then does not matter which lanes there are.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from lesson.core.arrays import IntArray
from lesson.core.errors import InputError, LackOfMemoryError
from lesson.learn.backend import Backend, why_not
from lesson.learn.counters import gpu_kernels
from lesson.learn.cpu import CpuBackend
from lesson.learn.cuda.batched import ClientBlock
from lesson.learn.cuda.graphs import Precision
from lesson.learn.device import event, lacks_memory, to_device
from lesson.learn.lanes.operations import execute
from lesson.learn.lanes.program import NO_SLOT, Kind, Rows, Wave
from lesson.learn.lanes.rows import JoinedRows, OpenLane, PackedRows, minibatches_of
from lesson.learn.lanes.slots import Slots
from lesson.learn.lanes.tables import LaneTables
from lesson.learn.partition import Holdings
from lesson.learn.scores import Score
from lesson.learn.workload import Workload

SAMPLES_IN_GRAPH, MAX_ROWS = 1600, 64
"""Samples and rows of a graph: enough to keep most of a GPU busy, but few enough for a lane that is alone."""
NUM_STREAMS = 4
"""Number of graphs of one shape that run concurrently."""
SLOTS_AT_ONCE, ROOM = 64, 2
"""Slots that are added together, at least. Another lane is opened if ROOM times as much memory is free as it needs."""


class Executed(NamedTuple):
    """What the execution of waves returns, for each of them."""

    finite: Callable[[], list[list[bool]]]
    """Waits for the GPU, and returns whether the result of each operation is finite."""
    scores: list[list[Callable[[], Score]]]
    """Functions that wait for the scores."""


class Machine:
    """The vectors and graphs of runs that share a task, a model and the settings of local training."""

    def __init__(self, workload: Workload, precision: Precision, num_lanes: int) -> None:
        if reason := why_not(workload, "batched", one_step=False):
            raise InputError(reason)
        self.workload, self._precision = workload, precision
        self.backend = _backend(workload, precision)
        self._tables = LaneTables(num_lanes, workload.batch_size, workload.sampler.epochs, workload.device)
        self._free_lanes = list(range(num_lanes))
        self._slots = Slots(workload.template.num_values, workload.device)
        self._free = list[int]()
        self._most_slots = 0
        """Largest number of slots of a lane so far."""
        self._graphs = dict[tuple[Kind, int], list[Any]]()
        self._lacked_memory = False
        self._streams = [torch.cuda.Stream() for _ in range(NUM_STREAMS)] if workload.device == "cuda" else [None]

    @property
    def is_empty(self) -> bool:
        """Whether no lane is open."""
        return len(self._free_lanes) == self._tables.num_lanes

    @property
    def is_exhausted(self) -> bool:
        """Whether memory did not suffice for its lanes, all of which have ended: their slots must make room."""
        return self.is_empty and self._lacked_memory

    def open(self, holdings: Holdings, seed: int) -> OpenLane:
        """Return a new lane; raise LackOfMemoryError if it would probably not fit into the GPU's memory."""
        self._check_room()
        if self._tables.reserve(len(holdings.num_samples), int(holdings.num_samples.sum())):
            self._close_graphs()
        number = self._free_lanes.pop(0)
        self._tables.set(number, holdings, seed)
        return OpenLane(number, self.workload.with_holdings(holdings, seed), np.array([NO_SLOT]))

    def widened(self, lane: OpenLane, num_slots: int) -> OpenLane:
        """Return a lane with at least this number of slots."""
        missing = num_slots - (len(lane.slots) - 1)
        if missing <= 0:
            return lane
        self._most_slots = max(self._most_slots, num_slots)
        if missing > len(self._free):
            self._free += self._slots.add(max(missing, SLOTS_AT_ONCE))
        taken = [self._free.pop() for _ in range(missing)]
        return lane._replace(slots=np.concatenate([lane.slots[:-1], taken, [NO_SLOT]]))

    def close(self, lane: OpenLane) -> None:
        """Make room for another lane."""
        self._free_lanes.append(lane.number)
        self._free += lane.slots[:-1].tolist()

    def put(self, lane: OpenLane, slots: IntArray, values: Sequence[Any]) -> None:
        """Fill slots of a lane."""
        self._slots.put(lane.slots[slots].tolist(), values)

    def get(self, lane: OpenLane, slots: IntArray) -> Tensor:
        """Return the vectors in slots of a lane, shape (num_slots, num_parameters)."""
        return self._slots.get(lane.slots[slots].tolist())

    def execute(self, work: Sequence[tuple[OpenLane, Wave]]) -> Executed:
        """Execute one wave of each of several lanes."""
        try:
            self._train(work)
            finite = execute(self._slots, work, self.workload.device)
            scores = [[self._begin_score(lane, slot) for slot in wave.scores] for lane, wave in work]
        except Exception as error:
            self._lacked_memory |= lacks_memory(error)
            raise
        return Executed(finite, scores)

    def release(self) -> None:
        """Free the graphs and the memory."""
        self._close_graphs()
        self.backend.close()

    def _check_room(self) -> None:
        """Raise LackOfMemoryError unless there is memory for a lane with as many vectors as the largest one has."""
        if self.workload.device == "cpu" or self.is_empty:
            return
        needed = max(SLOTS_AT_ONCE, self._most_slots) * self._slots.bytes_each
        free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        if free < ROOM * needed:
            raise LackOfMemoryError(f"the GPU has room for {self._tables.num_lanes - len(self._free_lanes)} lanes only")

    def _close_graphs(self) -> None:
        for graphs in self._graphs.values():
            for graph in graphs:
                graph.close()
        self._graphs.clear()

    def _begin_score(self, lane: OpenLane, slot: int) -> Callable[[], Score]:
        (copied,) = self.get(lane, np.array([slot]))  # the slot may be filled again before the evaluation begins
        try:
            return self.backend.begin_score(copied)
        except Exception as error:  # metrics of a task may raise anything; other lanes go on
            return partial(_raise, error)

    def _train(self, work: Sequence[tuple[OpenLane, Wave]]) -> None:
        """Train the rows of all waves, in graphs of one shape for each number of clients per row."""
        kinds: dict[tuple[Kind, int], list[tuple[OpenLane, Rows]]] = {}
        for lane, wave in work:
            for rows in wave.rows:
                kinds.setdefault((wave.kind, rows.scale.shape[1]), []).append((lane, rows))
        begun, used = event(self.workload.device), 0
        try:
            for (kind, size), parts in kinds.items():
                whole = JoinedRows.of(parts)
                if kind == "models":
                    order = np.argsort(-whole.numbers[4, :, 0], kind="stable")
                    self._train_models(whole[order], [lane for lane, _ in parts])
                    continue
                for begin in range(0, len(whole), self._rows_in(size)):
                    turn = begin // self._rows_in(size) % NUM_STREAMS
                    part = whole[begin : begin + self._rows_in(size)]
                    used = max(used, turn)
                    with self.on_stream(turn, begun):
                        self.packed(size, turn).run(part)
        finally:  # after an error, too: the slots that are being written may soon belong to other lanes
            self.join(used)

    def _rows_in(self, num_clients: int) -> int:
        """Return the number of rows of a graph whose rows have `num_clients` clients."""
        return max(1, min(MAX_ROWS, SAMPLES_IN_GRAPH // (num_clients * self.workload.batch_size)))

    def on_stream(self, turn: int, begun: Any) -> Any:
        """Return a context on one of the streams, which waits for what was launched before `begun`."""
        stream = self._streams[turn % len(self._streams)]
        if stream is not None:
            stream.wait_event(begun)
        return torch.cuda.stream(stream)

    def join(self, used: int) -> None:
        """Let what follows wait for the first streams."""
        for stream in self._streams[: used + 1]:
            if stream is not None:
                torch.cuda.current_stream().wait_stream(stream)

    def packed(self, num_clients: int, turn: int) -> PackedRows:
        """Return one of the graphs whose rows have `num_clients` clients."""
        made = self._graphs.setdefault(("gradients", num_clients), [])
        while len(made) <= turn:
            shape = self._rows_in(num_clients), num_clients
            made.append(PackedRows(self.workload, self._precision, shape, self._tables, self._slots))
        packed: PackedRows = made[turn]
        return packed

    def _train_models(self, whole: JoinedRows, lanes: Sequence[OpenLane]) -> None:
        """Train one model per row, those with the most steps first."""
        made, size = self._graphs.setdefault(("models", 1), []), self._rows_in(1)
        if not made:
            made.append(ClientBlock(self.workload, self._precision, size, self._tables))
        block: ClientBlock = made[0]
        workloads = {lane.number: lane.workload for lane in lanes}
        for begin in range(0, len(whole), size):
            part = whole[begin : begin + size]
            cohort = part.as_cohort()
            draw = minibatches_of(cohort, part.lane, workloads, block.width) if self.workload.sampler.epochs else None
            models = block.train(cohort, part.slots[0], self._slots.gather, draw, part.lane)
            self._slots.scatter(to_device(part.slots[1], self.workload.device), models)


def _backend(workload: Workload, precision: Precision) -> Backend:
    """Return the backend that evaluates models."""
    if workload.device == "cpu":
        return CpuBackend(workload, 1)
    from lesson.learn.cuda.backend import CudaBackend

    if gpu_kernels() is None:
        raise InputError("Triton is unavailable")
    return CudaBackend(workload, precision)


def _raise(error: Exception) -> NoReturn:
    raise error

"""Executes waves of many lanes on one device.

A row is always trained in a graph of the same shape, so that its result does not depend on the rows beside it, on their
number or on its place. It then does not matter which lanes there are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, NoReturn, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.errors import InputError, LackOfMemoryError
from lesson.learn.backend import Backend, why_not
from lesson.learn.cohort import Cohort
from lesson.learn.counters import gpu_kernels
from lesson.learn.cpu import CpuBackend
from lesson.learn.cuda.batched import ClientBlock, Gradients, MinibatchesInTurn, with_gradients
from lesson.learn.cuda.graphs import Graph, GraphInputs, Precision
from lesson.learn.device import lacks_memory, to_device
from lesson.learn.lanes.program import NO_SLOT, SLOTS_OF_OP, SUM, Kind, Operations, Rows, Wave
from lesson.learn.lanes.slots import Slots
from lesson.learn.lanes.tables import LaneTables
from lesson.learn.minibatch import NO_SAMPLE, sample_weights
from lesson.learn.optimizers import OPTIMIZERS
from lesson.learn.partition import Holdings
from lesson.learn.scores import Score
from lesson.learn.workload import Workload
from lesson.settings.sections import ServerSettings

SAMPLES_IN_GRAPH, MAX_ROWS = 1600, 64
"""Samples and rows of a graph: enough to keep most of a GPU busy, but few enough for a lane that is alone."""
NUM_STREAMS = 4
"""Number of graphs of one shape that run concurrently."""
SLOTS_AT_ONCE, ROOM = 64, 2
"""Slots that are added together, at least. Another lane is opened if ROOM times as much memory is free as it needs."""


class OpenLane(NamedTuple):
    """A lane of a machine."""

    number: int
    workload: Workload
    """With the clients of the lane."""
    slots: IntArray
    """Slot of the machine for each slot of the lane, and NO_SLOT at the end."""


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
            finite = self._operate(work)
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

    # Training

    def _train(self, work: Sequence[tuple[OpenLane, Wave]]) -> None:
        """Train the rows of all waves, in graphs of one shape for each number of clients per row."""
        kinds: dict[tuple[Kind, int], list[tuple[OpenLane, Rows]]] = {}
        for lane, wave in work:
            for rows in wave.rows:
                kinds.setdefault((wave.kind, rows.scale.shape[1]), []).append((lane, rows))
        begun, used = event(self.workload.device), 0
        try:
            for (kind, size), parts in kinds.items():
                whole = _Joined.of(parts)
                if kind == "models":
                    order = np.argsort(-whole.numbers[3, :, 0], kind="stable")
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
        """Return the number of rows of a graph for rows of so many clients."""
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

    def packed(self, num_clients: int, turn: int) -> "PackedRows":
        """Return one of the graphs for rows of so many clients."""
        made = self._graphs.setdefault(("gradients", num_clients), [])
        while len(made) <= turn:
            shape = self._rows_in(num_clients), num_clients
            made.append(PackedRows(self.workload, self._precision, shape, self._tables, self._slots))
        packed: PackedRows = made[turn]
        return packed

    def _train_models(self, whole: "_Joined", lanes: Sequence[OpenLane]) -> None:
        """Train one model per row, those with the most steps first."""
        made, size = self._graphs.setdefault(("models", 1), []), self._rows_in(1)
        if not made:
            made.append(ClientBlock(self.workload, self._precision, size, self._tables))
        block: ClientBlock = made[0]
        workloads = {lane.number: lane.workload for lane in lanes}
        for begin in range(0, len(whole), size):
            part = whole[begin : begin + size]
            cohort = part.as_cohort()
            draw = _minibatches(cohort, part.lane, workloads, block.width) if self.workload.sampler.epochs else None
            models = block.train(cohort, part.slots[0], self._slots.gather, draw, part.lane)
            self._slots.scatter(to_device(part.slots[1], self.workload.device), models)

    # Operations

    def _operate(self, work: Sequence[tuple[OpenLane, Wave]]) -> Callable[[], list[list[bool]]]:
        """Execute the operations of all waves; return a function that returns whether their results are finite."""
        sizes = [len(wave.operations.numbers) for _, wave in work]
        bounds = np.array([0, *accumulate(sizes)])
        if not bounds[-1]:
            return lambda: [[] for _ in work]
        operations = _joined_operations(work)
        if self.workload.device == "cpu":
            infinite = _operate_plainly(self._slots.vectors, operations)
            return lambda: [part.tolist() for part in np.split(~infinite, bounds[1:-1])]
        from lesson.learn.cuda import operations as kernels

        numbers, reals, slots, factors = operations
        whole = (bounds, numbers, reals.view(np.int64), slots, factors.view(np.int64))
        on_device = to_device(np.concatenate([one.reshape(-1) for one in whole]), "cuda")
        there = on_device.split([one.size for one in whole])
        flags = kernels.execute(
            self._slots.addresses,
            self._slots.length,
            there[0],
            there[1].view(numbers.shape),
            there[2].view(torch.float64),
            there[3],
            there[4].view(torch.float64),
        )
        copied = torch.empty(len(flags), dtype=torch.int32, pin_memory=True)
        copied.copy_(flags, non_blocking=True)
        ended = event("cuda")

        def finite() -> list[list[bool]]:
            ended.synchronize()
            return [part.tolist() for part in np.split(copied.numpy() == 0, bounds[1:-1])]

        return finite


class PackedRows:
    """The graph of one step for rows of several clients each, all of which start from the row's model."""

    def __init__(
        self, workload: Workload, precision: Precision, shape: tuple[int, int], tables: LaneTables, slots: Slots
    ) -> None:
        self._workload, self._shape, self._tables, self._precision = workload, shape, tables, precision
        num_rows, num_clients = shape
        self._slots, self._models = slots, workload.initial_vector().repeat(num_rows, 1)
        self._numbers = torch.zeros(7, num_rows * num_clients, dtype=torch.int64, device=workload.device)
        self._numbers[5:] = NO_SLOT
        self._inputs = GraphInputs(self._numbers)
        self._graph: Graph[None]
        with_gradients(workload, precision, self._record)

    def run(self, rows: "_Joined") -> None:
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

    def _write(self, rows: "_Joined", whole: IntArray, real: FloatArray) -> None:
        used = rows.scale.size
        whole[:5, used:] = 0
        whole[:3, :used] = rows.numbers[:3].reshape(3, -1)
        whole[3, :used] = np.repeat(rows.lane, self._shape[1])
        real[4, :used] = rows.scale.reshape(-1)
        whole[5:] = NO_SLOT
        whole[5:, : len(rows)] = rows.slots

    def _record(self, gradients: Gradients) -> None:
        body = partial(self._step, gradients)
        self._graph = Graph(body, self._precision, device=self._workload.device)

    def _step(self, gradients: Gradients) -> None:
        start, result = self._numbers[5:, : len(self._models)]
        self._slots.gather(start, self._models)
        client, index, first, lane = self._numbers[:4]
        scale = self._numbers[4].view(torch.float64)
        sampler = self._tables.sampler(lane)
        (padded,) = sampler.batches(client, index, 1, first=first)
        samples = self._workload.padded_batch((client, index), padded, first, sampler.keys.dropout)
        weights = sample_weights(padded, scale).view(self._shape[0], -1)
        parts = gradients(gradients.replica.named_views(self._models), samples, weights)
        self._slots.scatter(result, torch.cat([part.flatten(1) for part in parts.values()], dim=1))


@dataclass(frozen=True, eq=False)
class _Joined:
    """Rows of several lanes."""

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

    def __getitem__(self, rows: slice | IntArray) -> "_Joined":
        return _Joined(self.numbers[:, rows], self.scale[rows], self.slots[:, rows], self.lane[rows])

    def as_cohort(self) -> Cohort:
        """Return the rows, each of one client, as a cohort of which only the columns matter."""
        client, index, first, local_steps = self.numbers[:, :, 0]
        nothing = np.full(len(self), np.nan)
        return Cohort(torch.empty(0), client, index, self.scale[:, 0], local_steps, nothing, first, nothing)


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


def event(device: str) -> Any:
    """Return an event that has just been recorded; None on a CPU."""
    return torch.cuda.current_stream().record_event() if device == "cuda" else None


def _minibatches(block: Cohort, lane: IntArray, workloads: dict[int, Workload], width: int) -> Callable[[int], Tensor]:
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


def _joined_operations(work: Sequence[tuple[OpenLane, Wave]]) -> Operations:
    """Return the operations of several lanes, with slots of the machine."""
    parts, num_slots, num_terms = list[Operations](), len(SLOTS_OF_OP), 0
    for lane, wave in work:
        numbers, reals, slots, factors = wave.operations
        moved = numbers.copy()
        moved[:, :num_slots] = lane.slots[numbers[:, :num_slots]]
        moved[:, -1] += num_terms
        num_terms += len(slots)
        parts.append(Operations(moved, reals, lane.slots[slots], factors))
    return Operations(*map(np.concatenate, zip(*parts, strict=True)))


def _operate_plainly(vectors: Sequence[Tensor], operations: Operations) -> Any:
    """Execute operations one by one, by the formulas of optimizers.py; return which results are not finite."""
    functions, begin, infinite = list(OPTIMIZERS.values()), 0, list[bool]()
    for row, reals in zip(operations.numbers.tolist(), operations.reals.tolist(), strict=True):
        to, model, m, v, v_max, new_m, new_v, new_v_max, kind, end = row
        total = torch.zeros(vectors[to].shape, dtype=torch.float64)
        for slot, factor in zip(operations.slots[begin:end].tolist(), operations.factors[begin:end], strict=True):
            total += float(factor) * vectors[slot].double()
        begin = end
        if kind != SUM:
            moments = {"m": m, "v": v, "v_max": v_max}
            given = {name: vectors[slot].double() for name, slot in moments.items() if slot != NO_SLOT}
            eta, beta1, beta2, epsilon = reals
            server = ServerSettings(beta1=beta1, beta2=beta2, epsilon=epsilon)
            total, made = functions[kind - 1](vectors[model].double(), total, given, server, eta)
            for name, slot in zip(("m", "v", "v_max"), (new_m, new_v, new_v_max), strict=True):
                if slot != NO_SLOT:
                    vectors[slot].copy_(made[name])
        vectors[to].copy_(total)
        infinite.append(not bool(vectors[to].isfinite().all()))
    return np.array(infinite)

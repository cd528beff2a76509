"""Training on a Ray cluster: actors, one per CPU or GPU, divide the clients, and a lost actor is replaced.

A CPU actor trains each client as the reference trainer does, on a single thread, so results are bit-identical. As long
as more parts of cohorts are left than there are actors, an actor trains a whole part and returns only its sum, which
saves traffic. The last parts are divided among all actors to keep them busy, and their models are summed here.
"""

import os
import sys
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import parent_process
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lesson.core.arrays import IntArray
from lesson.core.errors import LACK_OF_MEMORY, InputError, RunStoppedError, describe
from lesson.core.ray_cluster import connected
from lesson.learn.backend import Backend, Trainer
from lesson.learn.cohort import COLUMNS, Cohort
from lesson.learn.process import configure_process
from lesson.learn.reference import ReferenceTrainer, add_parts, blocks_of, join_parts, parts_of
from lesson.learn.sharing import Packed, pack
from lesson.learn.simulated_clients import FASTEST_FIRST
from lesson.learn.workload import Workload

MAX_REPEATS = 3
"""How often work that was lost with its actor is repeated."""
PIECES_PER_ACTOR = 4
"""Number of pieces, for each actor, into which the last parts are divided."""
MAX_QUEUED, MAX_AHEAD = 2, 8
"""Limits per actor: pieces in its queue, and pieces submitted ahead of the next result."""
MIN_SHARED_BYTES = 1 << 20
"""Smaller tensors are copied into each actor: they may be model buffers, and actors would share what they write."""
POLL_S, NOTE_AFTER_S = 0.5, 30.0

Method = Literal["sums", "models", "rows"]
Values = npt.NDArray[np.float32]
Part = tuple[int, Cohort]
Share = tuple[list[Part], list[IntArray] | None]
"""Parts that an actor trains together, or one part and the rows of the pieces into which it is divided."""


class RayTrainer:
    """Trains cohorts on the cluster at RAY_ADDRESS or, without it, on one that is started on this machine.

    Raises InputError if the cluster cannot be used or the task cannot be copied into other processes. A local cluster
    has `num_cpus` CPUs, by default those of this machine. `precision` is that of training on GPUs.
    """

    def __init__(self, workload: Workload, num_cpus: int | None = None, precision: str = "float32") -> None:
        self._device, self._precision = workload.device, precision
        self._kind, share = ("CPU", {"num_cpus": 1}) if self._on_cpu else ("GPU", {"num_cpus": 0, "num_gpus": 1})
        packed, given = pack(workload), os.environ.get("RAY_ADDRESS", "")
        address = None if given in ("", "local") else given
        with ExitStack() as stack:
            self._ray = stack.enter_context(connected(address, name="RAY_ADDRESS", num_cpus=num_cpus))
            count = int(self._ray.cluster_resources().get(self._kind, 0))
            if not count:
                raise InputError(f"Ray finds no {self._kind}")
            self._make = self._ray.remote(max_restarts=0, **share)(_Actor)
            self._stored = self._ray.put((packed.content, [_stored(tensor) for tensor in packed.tensors]))
            self._actors = [self._start() for _ in range(count)]
            self._connection = stack.pop_all()

    def sums(self, cohorts: Sequence[Cohort]) -> list[Tensor]:
        """Return the weighted sum of the trained models of each cohort."""
        return add_parts(self._trained(cohorts, summed=True), len(cohorts))

    def models(self, cohorts: Sequence[Cohort]) -> list[Tensor]:
        """Return the trained models of each cohort, shape (num_rows, num_parameters)."""
        return join_parts(self._trained(cohorts, summed=False), len(cohorts))

    def close(self) -> None:
        """Kill the actors and close the connection, unless it existed before."""
        with self._connection:
            for actor in self._actors:
                self._ray.kill(actor.handle)
            self._actors.clear()

    @property
    def _on_cpu(self) -> bool:
        return self._device == "cpu"

    def _trained(self, cohorts: Sequence[Cohort], summed: bool) -> Iterator[tuple[int, Tensor]]:
        """Yield the sum of each part, or its models, with the index of its cohort, in order."""
        shares = self._shares(parts_of(cohorts), summed)
        pieces = [piece for share in shares for piece in _pieces(share, summed)]
        results = self._results(pieces, [cohort.base for cohort in cohorts])
        for parts, divided in shares:
            if divided is None:
                for (place, _), values in zip(parts, next(results), strict=True):
                    yield place, torch.from_numpy(values.copy()).to(self._device)
                continue
            ((place, part),) = parts
            models = torch.empty(len(part), len(part.base))
            for rows in divided:
                for row, values in zip(rows, next(results), strict=True):
                    models.numpy()[row] = values
            yield place, replace(part, trained=models).weighted_sum() if summed else models

    def _shares(self, parts: list[Part], summed: bool) -> list[Share]:
        """Divide the parts into shares. On GPUs, shares and thus rounding do not depend on the number of actors."""
        if not self._on_cpu:
            return [(block, None) for block in blocks_of(parts)]
        num_whole = max(0, len(parts) - len(self._actors)) if summed else 0
        num_steps = sum(int(part.local_steps.sum()) for _, part in parts[num_whole:])
        per_piece = num_steps / (PIECES_PER_ACTOR * len(self._actors))
        whole: list[Share] = [([part], None) for part in parts[:num_whole]]
        return whole + [([part], _divided(part[1].local_steps, per_piece)) for part in parts[num_whole:]]

    def _results(self, pieces: Sequence["_Piece"], bases: Sequence[Tensor]) -> Iterator[list[Values]]:
        """Yield the results of all pieces in order; repeat those that are lost."""
        put = cache(lambda place: self._ray.put(bases[place].cpu().numpy()))
        waiting, done, lost = deque(range(len(pieces))), dict[int, list[Values]](), Counter[int]()
        for member in self._actors:
            member.num_queued = 0  # pieces left over from a failed call do not count
        running: dict[Any, tuple[_Member, int]] = {}
        for wanted in range(len(pieces)):
            while wanted not in done:
                while waiting and waiting[0] < wanted + MAX_AHEAD * len(self._actors) and (actor := self._free()):
                    number = waiting.popleft()
                    piece = pieces[number]
                    arguments = (piece.method, piece.columns, *map(put, piece.places))
                    running[actor.handle.train.remote(*arguments)] = actor, number
                    actor.num_queued += 1
                for reference in self._ended(list(running)):
                    actor, number = running.pop(reference)
                    actor.num_queued -= 1
                    result = self._get(reference)
                    if isinstance(result, _Lost):
                        lost[number] += actor in self._actors  # once per actor, for the piece that it was training
                        if lost[number] > MAX_REPEATS:
                            raise result.error(lost[number])
                        waiting.appendleft(number)
                        self._replace(actor)
                    elif isinstance(result, str):
                        raise RunStoppedError(f"a training process failed: {result}")
                    else:
                        done[number] = result
            yield done.pop(wanted)

    def _free(self) -> "_Member | None":
        """Return the actor with the fewest pieces among those that can take another one; None if there is none."""
        ready = [actor for actor in self._actors if actor.pending is None and actor.num_queued < MAX_QUEUED]
        return min(ready, key=lambda actor: actor.num_queued, default=None)

    def _ended(self, running: list[Any]) -> list[Any]:
        """Wait until an actor has trained a piece or is ready; return the references of trained pieces."""
        began, is_told = time.monotonic(), False
        while True:
            asked = {actor.pending: actor for actor in self._actors if actor.pending is not None}
            references = [*running, *asked]
            ended, _ = self._ray.wait(references, timeout=POLL_S)
            if ended:
                ended, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
                for reference in ended:
                    if reference in asked:
                        self._note_ready(asked[reference])
                return [reference for reference in ended if reference not in asked]
            if not running and not is_told and time.monotonic() - began > NOTE_AFTER_S and parent_process() is None:
                print(f"note: waiting for a free {self._kind} of the Ray cluster", file=sys.stderr)
                is_told = True

    def _start(self, num_lost: int = 0) -> "_Member":
        """Start an actor. `num_lost` predecessors were lost in a row before they were ready."""
        handle = self._make.remote()
        return _Member(handle, handle.load.remote(self._stored, self._precision, sys.path), num_lost)

    def _note_ready(self, actor: "_Member") -> None:
        """Mark an actor as ready, or replace it if it was lost."""
        problem = self._get(actor.pending)
        if isinstance(problem, _Lost):
            if actor.num_lost == MAX_REPEATS:
                raise problem.error(actor.num_lost + 1)
            self._replace(actor, actor.num_lost + 1)
        elif problem:
            remedy = "install the same packages on every node of the cluster"
            raise InputError(f"task cannot be copied to the Ray cluster: {problem}; {remedy}")
        else:
            actor.pending, actor.num_lost = None, 0

    def _replace(self, actor: "_Member", num_lost: int = 0) -> None:
        """Start an actor in place of a lost one, unless it has already been replaced.

        Idle actors get no work until they answer a ping, because a lost node takes several actors with it.
        """
        if actor not in self._actors:
            return
        self._ray.kill(actor.handle)
        self._actors[self._actors.index(actor)] = self._start(num_lost)
        for other in self._actors:
            if other.pending is None and not other.num_queued:
                other.pending = other.handle.ping.remote()

    def _get(self, reference: Any) -> Any:
        """Return an actor's result, `_Lost` if it was lost, or the reason if the actor could not be created."""
        known = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except (known.RayActorError, known.NodeDiedError, known.ObjectLostError, known.OutOfMemoryError) as error:
            if getattr(error, "actor_init_failed", False):  # LESSON cannot be imported on its node
                return str(error).strip().splitlines()[-1]
            return _Lost(type(error).__name__)
        except known.RayError as error:
            raise RunStoppedError(f"a Ray actor failed: {describe(error)}") from None


@dataclass(eq=False)
class _Member:
    """An actor of the trainer."""

    handle: Any
    pending: Any
    """Reference to the result of `_Actor.load` or `_Actor.ping`; None if the actor is ready."""
    num_lost: int
    num_queued: int = 0


class _Piece(NamedTuple):
    """Rows for one actor: the method of its trainer to call, the indices of the cohorts, and the columns of each."""

    method: Method
    places: list[int]
    columns: list[dict[str, Any]]


class _Lost(NamedTuple):
    """Stands in for a result that was lost with its actor."""

    what: str

    def error(self, times: int) -> RunStoppedError:
        """Return the error for work that was lost too often."""
        why = f"{LACK_OF_MEMORY}, then resume the run from its last checkpoint"
        return RunStoppedError(f"a Ray actor was lost {times} times at the same work: Ray reports {self.what}, {why}")


class _Actor:
    """Trains clients in a process of the cluster."""

    def load(self, stored: tuple[bytes, list[Any]], precision: str, folders: Sequence[str]) -> str:
        """Unpack a stored workload and prepare to train it; return an error message, or an empty string.

        `folders` are added to the module search path, for custom tasks whose modules exist on this node.
        """
        configure_process()
        sys.path.extend(folder for folder in folders if folder not in sys.path)
        content, tensors = stored
        try:
            workload = Packed(content, [_restored(*each) for each in tensors]).unpack()
            self._device = workload.device
            self._trainer = cache(lambda one_step: _make_trainer(workload, precision, one_step))
        except Exception as error:  # a custom task may raise anything
            return describe(error)
        return ""

    def ping(self) -> str:
        """Return an empty string, which shows that the actor is alive."""
        return ""

    def train(self, method: Method, columns: list[dict[str, Any]], *bases: Values) -> list[Values] | str:
        """Call a method of the trainer for these cohorts and return its results, or an error message."""
        try:
            starts = [torch.from_numpy(base.copy()).to(self._device) for base in bases]
            cohorts = [Cohort(start, **rest) for start, rest in zip(starts, columns, strict=True)]
            trainer = self._trainer(all(np.all(cohort.local_steps == 1) for cohort in cohorts))
            return [one.cpu().numpy() for one in getattr(trainer, method)(cohorts)]
        except RunStoppedError as error:
            return str(error)
        except Exception as error:
            return repr(error)


def _make_trainer(workload: Workload, precision: Any, one_step: bool) -> Trainer:
    """Return the trainer that an actor uses: on a GPU, the one that "auto" would choose there."""
    if workload.device == "cpu":
        return ReferenceTrainer(workload)
    from lesson.learn.cuda.backend import CudaBackend

    backend: Backend = CudaBackend(workload, precision)
    for name in FASTEST_FIRST[:-1]:
        if not backend.why_not(name, one_step):
            try:
                return backend.trainer(name)
            except InputError:  # the model cannot be recorded
                continue
    return backend.trainer(FASTEST_FIRST[-1])


def _stored(tensor: Tensor) -> tuple[Any, str]:
    """Return a tensor as an array, which the actors on a node share, and its device; unusual tensors stay tensors."""
    local, device = tensor.cpu(), tensor.device.type
    if local.layout == torch.strided and local.is_contiguous():
        with suppress(TypeError):  # NumPy has no such type
            return local.numpy(), device
    return local, device


def _restored(values: Any, device: str) -> Tensor:
    """Return a tensor from `_stored`."""
    if isinstance(values, Tensor):
        return values.to(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of arrays that are read-only
        return torch.from_numpy(values.copy() if values.nbytes < MIN_SHARED_BYTES else values).to(device)


def _divided(local_steps: IntArray, per_piece: float) -> list[IntArray]:
    """Split the rows of a part into pieces of about `per_piece` local steps, the rows with the most steps first."""
    order = np.argsort(-local_steps, kind="stable")
    steps = local_steps[order]
    num_pieces = max(1, round(steps.sum() / per_piece))
    piece = (np.cumsum(steps) - steps) * num_pieces // steps.sum()
    return np.split(order, np.flatnonzero(np.diff(piece)) + 1)


def _pieces(share: Share, summed: bool) -> list[_Piece]:
    """Return the pieces of a share. Those of a divided part return models row by row, which saves joining them."""
    parts, divided = share
    places, cohorts = [place for place, _ in parts], [cohort for _, cohort in parts]
    if divided is None:
        return [_Piece("sums" if summed else "models", places, [_columns(cohort) for cohort in cohorts])]
    return [_Piece("rows", places, [_columns(cohorts[0][rows])]) for rows in divided]


def _columns(cohort: Cohort) -> dict[str, Any]:
    return {name: getattr(cohort, name) for name in COLUMNS}

"""The process with the GPU: it executes the programs of all lanes, one wave of each at a time."""

import contextlib
import pickle
import queue
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Listener, wait
from typing import Any

import torch

from lesson.core.errors import InputError, LackOfMemoryError, RunStoppedError, describe, traceback_of
from lesson.learn.cuda.graphs import Precision
from lesson.learn.device import lacks_memory
from lesson.learn.lanes.backend import NoLaneError, Opening
from lesson.learn.lanes.machine import Executed, Machine
from lesson.learn.lanes.program import Failure, Outcome, Program, Wave
from lesson.learn.lanes.rows import OpenLane
from lesson.learn.scores import Score
from lesson.learn.workload import Workload
from lesson.settings.settings import Settings

MAX_AHEAD = 2
"""Number of turns that may be launched before the GPU has finished the first of them: later programs join the next."""
OF_THE_RUN = (
    *("learning_rate", "lr_cap", "local_steps", "weighting"),
    *("latency_samples", "latency_passes", "theta", "epsilon"),
    *("schedule", "schedule_over", "schedule_period", "schedule_factor"),
)
"""Settings of [training] that lanes need not share: they act on the clock, or on the columns of rows."""


class Connected:
    """A connected run: its lane, and what it has asked for."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.requests = deque[tuple[str, tuple[Any, ...]]]()
        self.lane: OpenLane | None = None
        self.machine: Machine | None = None
        self.waves = deque[Wave]()
        """Waves of the current program that have not been launched."""
        self.progress = Progress()
        """What the current program has returned so far."""

    def reply(self, value: Any, failure: Failure | None = None) -> None:
        """Send a reply; a run that has ended does not read it."""
        with contextlib.suppress(OSError):
            self.connection.send_bytes(pickle.dumps((value, failure), pickle.HIGHEST_PROTOCOL))


@dataclass(eq=False)
class Progress:
    """What a program has returned so far."""

    outcome: Outcome = field(default_factory=Outcome)
    failure: Failure | None = None


class Turn:
    """Waves of several lanes that have been launched together."""

    def __init__(self, runs: Sequence[Connected], executed: Executed) -> None:
        self._executed = executed
        self._runs = [(run, run.progress, not run.waves) for run in runs]
        """Each run with its program, and whether this was the last wave of the program."""

    def finish(self) -> None:
        """Wait for the results, and reply to the runs whose program has ended."""
        whole = zip(self._runs, self._executed.finite(), self._executed.scores, strict=True)
        for (run, progress, ends), finite, scores in whole:
            progress.outcome.finite += finite
            progress.outcome.scores += map(_score, scores)
            if ends:
                run.reply(progress.outcome, progress.failure)


class Server:
    """Executes the requests of all connected runs. `make` returns the data and model of a run on the device."""

    def __init__(self, make: Callable[[Settings], Workload], num_lanes: int) -> None:
        self._make, self._num_lanes = make, num_lanes
        self._runs: dict[Any, Connected] = {}
        self._machines: dict[str, Machine] = {}
        self._turns = deque[Turn]()

    def serve(self, listener: Listener, parent: Connection) -> None:
        """Serve until `parent` is closed."""
        accepted: queue.SimpleQueue[Connection] = queue.SimpleQueue()
        bell, ring = socket.socketpair()
        threading.Thread(target=_accept, args=(listener, accepted, ring), daemon=True).start()
        while True:
            is_idle = not self._turns and not any(run.waves or run.requests for run in self._runs.values())
            ready = wait([*self._runs, bell, parent], None if is_idle else 0)
            if parent in ready:
                return
            if bell in ready:
                bell.recv(1)
                connection = accepted.get()
                self._runs[connection] = Connected(connection)
            for one in ready:
                if one in self._runs:
                    self._receive(self._runs[one])
            for run in list(self._runs.values()):
                self._answer(run)
            launched = [self._launch(machine) for machine in self._machines.values()]
            if self._turns and (not any(launched) or len(self._turns) >= MAX_AHEAD):
                self._turns.popleft().finish()

    def _receive(self, run: Connected) -> None:
        """Take the requests of a run; a run that has ended loses its lane, which the next one may need at once."""
        try:
            while run.connection.poll():
                run.requests.append(pickle.loads(run.connection.recv_bytes()))
        except (EOFError, OSError):
            del self._runs[run.connection]
            run.connection.close()
            if run.machine is not None and run.lane is not None:
                run.machine.close(run.lane)

    def _answer(self, run: Connected) -> None:
        """Handle requests of a run up to its next program, whose waves then wait for their turns."""
        while run.requests and not run.waves:
            name, content = run.requests.popleft()
            if name == "execute":
                self._begin(run, *content)
                continue
            while self._turns:  # replies have the order of requests
                self._turns.popleft().finish()
            try:
                run.reply(getattr(self, f"_{name}")(run, *content))
            except Exception as error:  # a task's model, data or metrics may raise anything
                run.reply(None, _failure(error))

    def _begin(self, run: Connected, program: Program) -> None:
        run.progress = Progress()
        run.waves.extend(program.waves)
        machine, lane = _of(run)
        try:
            run.lane = machine.widened(lane, program.num_slots)
        except Exception as error:
            self._fail([run], error)

    def _launch(self, machine: Machine) -> bool:
        """Launch the next wave of each lane of a machine; return whether there was any."""
        runs = [run for run in self._runs.values() if run.machine is machine and run.waves]
        if not runs:
            return False
        work = [(_of(run)[1], run.waves.popleft()) for run in runs]
        try:
            self._turns.append(Turn(runs, machine.execute(work)))
        except InputError as error:  # the model cannot be recorded
            self._fail(runs, NoLaneError(str(error)))
        except Exception as error:  # a lack of memory, or a model that fails
            self._fail(runs, error)
        return True

    def _fail(self, runs: Sequence[Connected], error: Exception) -> None:
        """End the programs of runs with an error."""
        for run in runs:
            run.waves.clear()
            run.progress.failure = _failure(error)
        nothing = Executed(lambda: [[] for _ in runs], [[] for _ in runs])
        self._turns.append(Turn(runs, nothing))

    # Requests

    def _open(self, run: Connected, opening: Opening) -> None:
        settings = opening.settings
        training = settings.training.model_dump(exclude=set(OF_THE_RUN))
        task, how = (settings.data.dataset, settings.task.options), (settings.run.device, settings.run.precision)
        key = repr((task, training, how, opening.shared_digest))
        if key not in self._machines or self._machines[key].is_exhausted:
            for name in [name for name, machine in self._machines.items() if machine.is_empty]:
                self._machines.pop(name).release()
            workload = self._make(settings)
            try:
                self._machines[key] = Machine(workload, _precision(settings), self._num_lanes)
            except InputError as error:
                raise NoLaneError(str(error)) from error
        run.machine = self._machines[key]
        run.lane = run.machine.open(opening.holdings, settings.run.seed)

    def _put(self, run: Connected, slots: Any, values: Any, num_slots: int) -> None:
        machine, lane = _of(run)
        run.lane = machine.widened(lane, num_slots)
        machine.put(run.lane, slots, values)

    def _get(self, run: Connected, slots: Any) -> Any:
        machine, lane = _of(run)
        return machine.get(lane, slots).cpu().numpy()

    def _sample_scores(self, run: Connected, slots: Any, samples: Any) -> Any:
        machine, lane = _of(run)
        (vector,) = machine.get(lane, slots)
        ids = None if samples is None else torch.from_numpy(samples)
        return machine.backend.sample_scores(vector, ids).cpu().numpy()


def _accept(listener: Listener, accepted: "queue.SimpleQueue[Connection]", ring: socket.socket) -> None:
    while True:
        try:
            accepted.put(listener.accept())
        except OSError:
            continue
        ring.send(b"1")


def _of(run: Connected) -> tuple[Machine, OpenLane]:
    assert run.machine is not None
    assert run.lane is not None, "the first request opens the lane"
    return run.machine, run.lane


def _precision(settings: Settings) -> Precision:
    return settings.run.precision  # type: ignore[return-value]  # not "auto": it is resolved


def _score(score: Callable[[], Score]) -> Score | Failure:
    """Wait for a score; if it cannot be computed, only its run fails, and only from there on."""
    try:
        return score()
    except Exception as error:  # metrics of a task may raise anything
        return _failure(error)


def _failure(error: Exception) -> Failure:
    """Return an error that can be sent to another process."""
    if lacks_memory(error):
        return Failure(LackOfMemoryError(f"not enough memory on the GPU: {describe(error)}"), "")
    if isinstance(error, InputError | RunStoppedError):
        return Failure(error, traceback_of(error))
    return Failure(
        RunStoppedError(f"the process that trains on the GPU failed: {describe(error)}"), traceback_of(error)
    )

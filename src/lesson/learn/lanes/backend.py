"""The backend of a run whose models are computed by another process: it records programs and sends them there."""

import pickle
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Client
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lesson.core.errors import LACK_OF_MEMORY, RunStoppedError
from lesson.learn.backend import MAX_CHUNK_STEPS, ChunkRule, TrainerName
from lesson.learn.lanes.program import Failure, Outcome
from lesson.learn.lanes.vectors import Recorder, RecordingTrainer, Vector, slots_of
from lesson.learn.optimizers import Optimizer
from lesson.learn.partition import Holdings
from lesson.learn.results import Launched
from lesson.learn.scores import Score
from lesson.learn.workload import Workload
from lesson.settings.settings import Settings

Arrays = Sequence[npt.NDArray[np.floating]]


class NoLaneError(RunStoppedError):
    """A run cannot be a lane. The message says why."""


class Opening(NamedTuple):
    """What the other process needs to know about a run."""

    settings: Settings
    holdings: Holdings
    shared_digest: str
    """Lanes share a model only if its values that are not exchanged are the same, see `Template.shared_digest`."""


class Reply:
    """The reply to a request, which may not have arrived yet."""

    def __init__(self, channel: "Channel") -> None:
        self._channel = channel
        self._content: tuple[Any, Failure | None] | None = None

    def wait(self) -> Any:
        """Return the reply; raise the error that the other process reports."""
        while self._content is None:
            self._channel.receive()
        value, failure = self._content
        if failure is not None:
            failure.raise_error()
        return value

    def set(self, content: tuple[Any, Failure | None]) -> None:
        """Set the reply: a value, or a failure."""
        self._content = content


class Channel:
    """Requests to the process with the GPU, which replies in their order."""

    def __init__(self, address: str) -> None:
        try:
            self._connection = Client(address, "AF_UNIX")
        except OSError:
            raise _lost() from None
        self._waiting = deque[Reply]()

    def request(self, name: str, *content: Any) -> Reply:
        """Send a request without waiting for its reply."""
        reply = Reply(self)
        self._waiting.append(reply)
        try:
            self._connection.send_bytes(pickle.dumps((name, content), pickle.HIGHEST_PROTOCOL))
        except OSError:
            raise _lost() from None
        return reply

    def receive(self) -> None:
        """Wait for the next reply."""
        try:
            content = pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            raise _lost() from None
        self._waiting.popleft().set(content)

    def close(self) -> None:
        """Close the connection; the other process then frees the lane."""
        self._connection.close()


def _lost() -> RunStoppedError:
    return RunStoppedError(f"the process that trains on the GPU has ended, {LACK_OF_MEMORY}; then resume the run")


class LaneBackend:
    """Training and evaluation by the process with the GPU. It is also the memory of the lane."""

    def __init__(self, address: str, workload: Workload, settings: Settings) -> None:
        self._workload = workload
        self._recorder = Recorder(workload.template.num_values, workload.batch_size)
        self.optimizers: Mapping[str, Optimizer] = self._recorder.optimizers
        self._channel = Channel(address)
        try:
            opening = Opening(settings, workload.holdings, workload.template.shared_digest)
            self._channel.request("open", opening).wait()
        except BaseException:
            self._channel.close()
            raise
        self._chunk = self.launched()

    @property
    def rule(self) -> ChunkRule:
        """Chunks of fixed size, each of which is computed while the clock builds the next one."""
        return ChunkRule(MAX_CHUNK_STEPS, ends_anywhere=False)

    @property
    def memory(self) -> "LaneBackend":
        return self

    def trainer(self, name: TrainerName) -> RecordingTrainer:
        return RecordingTrainer(self._recorder, name)

    def begin_score(self, vector: Tensor) -> Callable[[], Score]:
        if isinstance(vector, Tensor):
            (vector,) = self.put([vector.numpy()])
        chunk = self.launched() if self._chunk.is_complete else self._chunk
        number = self._recorder.score(cast(Vector, vector))

        def score() -> Score:
            if not chunk.is_complete:  # the model is evaluated outside of a chunk
                chunk.begin_copy()
            result = chunk.outcome().scores[number]
            if isinstance(result, Failure):
                result.raise_error()
            return result

        return score

    def sample_scores(self, vector: Tensor, samples: Tensor | None) -> Tensor:
        self._chunk.send()
        ids = None if samples is None else samples.numpy()
        scores: npt.NDArray[np.float32] = self._channel.request("sample_scores", slots_of([vector]), ids).wait()
        return torch.from_numpy(scores)

    def close(self) -> None:
        """Close the lane."""
        self._channel.close()

    # Memory

    def put(self, arrays: Arrays) -> list[Tensor]:
        self._chunk.send()
        vectors = [cast(Tensor, self._recorder.new()) for _ in arrays]
        content = [array.astype(np.float32) for array in arrays]
        self._channel.request("put", slots_of(vectors), content, self._recorder.num_slots).wait()
        return vectors

    def get(self, vectors: Sequence[Tensor]) -> list[npt.NDArray[np.floating]]:
        self._chunk.send()
        values: npt.NDArray[np.float32] = self._channel.request("get", slots_of(vectors)).wait()
        return list(values)

    def store(self, vector: Tensor) -> Tensor:
        return cast(Tensor, self._recorder.store(cast(Vector, vector)))

    def launched(self) -> "LaunchedProgram":
        self._chunk = LaunchedProgram(self._recorder, self._channel)
        return self._chunk


class LaunchedProgram(Launched):
    """A chunk that is sent to the other process, as one or more programs."""

    def __init__(self, recorder: Recorder, channel: Channel) -> None:
        super().__init__()
        recorder.begin_count()
        self._recorder, self._channel = recorder, channel
        self._replies, self._outcome = list[Reply](), Outcome()
        self.is_complete = False
        """Whether the whole chunk has been sent."""

    def begin_copy(self) -> None:
        """Send the rest of the chunk."""
        self.send()
        self.is_complete = True

    def send(self) -> None:
        """Send what has been recorded so far: the other process needs it to answer the next request."""
        program = self._recorder.take_program()
        if program.waves:
            self._replies.append(self._channel.request("execute", program))

    def outcome(self) -> Outcome:
        """Wait until the programs have been executed, and return what they returned."""
        for reply in self._replies:
            part: Outcome = reply.wait()
            self._outcome.finite += part.finite
            self._outcome.scores += part.scores
        self._replies.clear()
        return self._outcome

    def _sums(self) -> list[float]:
        """Return 0 for each new model, or NaN if it is not finite."""
        finite = self.outcome().finite
        numbers = [cast(int, one.sum) for one in self.rounds if one.sum is not None]
        return [0.0 if finite[number] else np.nan for number in numbers]

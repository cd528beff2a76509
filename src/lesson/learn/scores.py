"""Evaluation of a model on the test data and on the samples of each client."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from lesson.core.arrays import FloatArray
from lesson.core.errors import InputError, describe
from lesson.learn.losses import as_floats, correct
from lesson.learn.metric import check_metric_name
from lesson.learn.partition import Holdings
from lesson.learn.task import ACCURACY, MAX_METRICS, TEST_LOSS, Arrays, Task, describe_arrays, num_samples, split_arrays
from lesson.learn.template import Replica, prepared
from lesson.learn.threads import Threads
from lesson.learn.workload import Workload

CHUNK_SAMPLES = 500


@dataclass(frozen=True)
class Score:
    """Metrics and mean loss on the test data."""

    values: Mapping[str, float]
    """Finite values by the name of the metric; the metric by which models are compared comes first."""
    loss: float
    """NaN if an app on Flower does not report its loss."""


Result_co = TypeVar("Result_co", covariant=True)


class Pending(Protocol[Result_co]):
    """The result of an evaluation, which may not have been computed yet."""

    def ready(self) -> bool:
        """Return whether `result` returns without waiting."""
        ...

    def result(self) -> Result_co:
        """Return the result; wait until it has been computed."""
        ...


PendingScore = Pending[Score]


@dataclass(frozen=True)
class Known(Generic[Result_co]):
    """The result of an evaluation that has finished."""

    value: Result_co

    def ready(self) -> bool:
        return True

    def result(self) -> Result_co:
        return self.value


@dataclass(frozen=True, eq=False)
class ClientScores:
    """Accuracy and loss on each client's samples, shape (num_clients,); NaN for a client without samples."""

    accuracy: FloatArray
    """Share of the samples that are classified correctly; NaN for a task without accuracy."""
    loss: FloatArray
    """Mean loss f_i, Eq. (2)."""
    global_loss: float
    """Mean of the losses, weighted by number of samples, Eq. (1)."""


def score(workload: Workload, threads: Threads, vector: Tensor) -> Score:
    """Evaluate the model with these exchanged values on the test data."""
    task = workload.task
    chunks = _in_threads(workload, threads, _score_chunk, vector, workload.test_inputs, workload.test_targets)
    right, loss = 0.0, 0.0
    for chunk_right, chunk_loss, _ in chunks:
        right, loss = right + chunk_right, loss + chunk_loss
    outputs = None if task.metrics is None else joined([chunk for _, _, chunk in chunks])
    return make_score(task, right, loss, outputs, workload.test_targets)


def make_score(task: Task, right: float, loss: float, outputs: Any, targets: Arrays) -> Score:
    """Return the score, given the sums of correct predictions and losses, or all outputs for a task's own metrics."""
    total = num_samples(targets)
    if task.metrics is None:
        return Score({ACCURACY: right / total} if task.metric == ACCURACY else {TEST_LOSS: loss / total}, loss / total)
    return Score(measured(task, outputs, targets), loss / total)


def measured(task: Task, outputs: Any, targets: Arrays) -> dict[str, float]:
    """Return the task's own metrics, `task.metric` first; raise InputError if they are invalid."""
    assert task.metrics is not None, "only for a task with its own metrics"
    try:
        given = task.metrics(outputs, targets)
    except Exception as error:  # a custom function may raise anything
        raise InputError(f"metrics cannot be computed: {describe(error)}") from error
    named = dict(given) if isinstance(given, Mapping) else {task.metric or _name_of(task.metrics): given}
    if not 1 <= len(named) <= MAX_METRICS:
        raise InputError(f"metrics must return from 1 to {MAX_METRICS} numbers by name, got {len(named)}")
    values = dict[str, float]()
    for name, value in named.items():
        try:
            values[check_metric_name(name)] = float(value)
        except (TypeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"metrics must return a number for '{name}', got {type(value).__name__}") from None
    first = task.metric or next(iter(values))
    if first not in values:
        raise InputError(f"metric must be one of {', '.join(values)}, got '{first}'")
    return {first: values[first]} | values


def _name_of(function: Any) -> str:
    """Return a name for the number that a function returns."""
    name = getattr(function, "__name__", type(function).__name__)
    return name if name.isidentifier() else "score"


def judge_all(workload: Workload, threads: Threads, vector: Tensor, inputs: Arrays, targets: Arrays) -> Tensor:
    """Apply `judge` to any number of samples; return shape (num_samples, 2)."""
    return torch.cat(_in_threads(workload, threads, judge, vector, inputs, targets))


@torch.no_grad()
def judge(replica: Replica, workload: Workload, inputs: Arrays, targets: Any) -> Tensor:
    """Return the share of correct predictions of each sample, NaN without accuracy, and its loss, shape (num, 2)."""
    outputs, loss = as_floats(replica.outputs(prepared(workload.task, inputs))), workload.loss
    if loss.each is not None:
        losses = loss.each(outputs, targets)
    else:
        ones = [1] * num_samples(targets)
        pairs = zip(split_outputs(outputs, ones), split_arrays(targets, ones), strict=True)
        losses = torch.stack([loss.mean(out, target) for out, target in pairs])
    right = correct(outputs, targets) if workload.task.metric == ACCURACY else torch.full_like(losses, torch.nan)
    return torch.stack([right.to(losses.dtype), losses], dim=1)


def by_client(holdings: Holdings, judged_by: Callable[[Tensor], Tensor]) -> ClientScores:
    """Return the scores of all clients. `judged_by` maps indices of training samples to the values of `judge`.

    A sample that several clients hold is judged once.
    """
    clients = np.flatnonzero(holdings.num_samples).tolist()
    held = np.unique(np.concatenate([holdings[client] for client in clients]))
    judged = judged_by(torch.from_numpy(held)).cpu().numpy().astype(np.float64)
    means = np.full((len(holdings.num_samples), 2), np.nan)
    for client in clients:
        means[client] = judged[np.searchsorted(held, holdings[client])].mean(axis=0)
    accuracy, loss = means.T
    return ClientScores(accuracy, loss, float(np.nansum(loss * holdings.num_samples) / holdings.num_samples.sum()))


def chunked(inputs: Arrays, targets: Arrays, size: int) -> Iterator[tuple[Arrays, Arrays]]:
    """Return an iterator over inputs and targets in chunks of `size`; the last chunk may be smaller."""
    total = num_samples(targets)
    sizes = [min(size, total - begin) for begin in range(0, total, size)]
    return zip(split_arrays(inputs, sizes), split_arrays(targets, sizes), strict=True)


def joined(outputs: list[Any]) -> Any:
    """Return the outputs of several chunks as those of all samples."""
    first = _with_rows(outputs[0])
    if isinstance(first, Tensor):
        return torch.cat(outputs)
    if isinstance(first, Mapping):
        return {name: joined([one[name] for one in outputs]) for name in first}
    return tuple(joined(list(parts)) for parts in zip(*outputs, strict=True))


def _with_rows(outputs: Any) -> Any:
    """Return outputs; raise InputError if they are not tensors with one row per sample, or tuples or dicts of them."""
    if not isinstance(outputs, Mapping | tuple | list) and not (isinstance(outputs, Tensor) and outputs.dim()):
        got = describe_arrays(outputs)
        raise InputError(
            f"model must return tensors with one row per sample, or tuples or dicts of them, for its metrics, got {got}"
        )
    return outputs


def split_outputs(outputs: Any, sizes: list[int]) -> list[Any]:
    """Split outputs, of any structure, into consecutive parts of these numbers of samples."""
    if isinstance(_with_rows(outputs), Tensor):
        return list(outputs.split(sizes))
    if isinstance(outputs, Mapping):
        columns = [split_outputs(part, sizes) for part in outputs.values()]
        return [dict(zip(outputs, row, strict=True)) for row in zip(*columns, strict=True)]
    return list(zip(*(split_outputs(part, sizes) for part in outputs), strict=True))


def _in_threads(
    workload: Workload, threads: Threads, work: Callable[..., Any], vector: Tensor, inputs: Arrays, targets: Arrays
) -> list[Any]:
    """Return work(replica, workload, inputs, targets) of each chunk, in order."""
    chunks = chunked(inputs, targets, CHUNK_SAMPLES)
    parts = [threads.submit(_seeded, vector, work, workload, number, *chunk) for number, chunk in enumerate(chunks)]
    return [part.result() for part in parts]


def _seeded(replica: Replica, work: Callable[..., Any], workload: Workload, number: int, *chunk: Any) -> Any:
    with workload.seeded_scores(number):
        return work(replica, workload, *chunk)


@torch.no_grad()
def _score_chunk(replica: Replica, workload: Workload, inputs: Arrays, targets: Any) -> tuple[float, float, Any]:
    """Return the sums of correct predictions and of losses, and the outputs if the task has its own metrics."""
    task = workload.task
    outputs = replica.outputs(prepared(task, inputs))
    right = float(correct(outputs, targets).sum()) if task.metric == ACCURACY and task.metrics is None else 0.0
    return right, float(workload.loss.total(outputs, targets)), outputs if task.metrics is not None else None

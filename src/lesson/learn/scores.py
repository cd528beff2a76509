"""Evaluation of a model on the test data and on the samples of each client."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, TypeVar

import torch
from torch import Tensor

from lesson.core.arrays import FloatArray
from lesson.core.errors import InputError, describe
from lesson.learn.losses import as_floats, correct
from lesson.learn.metric import check_metric_name
from lesson.learn.task import ACCURACY, TEST_LOSS, Arrays, Task
from lesson.learn.template import Replica, prepared
from lesson.learn.trees import describe_tree, join, leaves_of, map_tensors, num_samples, split
from lesson.learn.workload import Workload

Result = TypeVar("Result")
MAX_METRICS = 20


@dataclass(frozen=True)
class Score:
    """Metrics and mean loss on the test data."""

    values: Mapping[str, float]
    """Finite values by the name of the metric; the metric by which models are compared comes first."""
    loss: float
    """NaN if an app on Flower does not report its loss."""


@dataclass(frozen=True, eq=False)
class ClientScores:
    """Accuracy and loss on each client's samples, shape (num_clients,); NaN for a client without samples."""

    accuracy: FloatArray
    """Share of the samples that are classified correctly; NaN for a task without accuracy."""
    loss: FloatArray
    """Mean loss f_i, Eq. (2)."""
    global_loss: float
    """Mean of the losses, weighted by number of samples, Eq. (1)."""


def part_tasks(
    evaluate: Callable[[Replica, Workload, Arrays, Arrays], Result],
    workload: Workload,
    inputs: Arrays,
    targets: Arrays,
    size: int,
) -> Iterator[Callable[[Replica], Result]]:
    """Return, for each part of `size` samples, a function of a loaded replica that evaluates the part.

    Every evaluation calls these functions: in threads, on a GPU or in a CUDA graph.
    """

    def task(number: int, part: tuple[Arrays, Arrays], replica: Replica) -> Result:
        with torch.no_grad(), workload.seeded_scores(number):
            return evaluate(replica, workload, *part)

    total = num_samples(targets)
    sizes = [min(size, total - begin) for begin in range(0, total, size)]
    parts = zip(split(inputs, sizes), split(targets, sizes), strict=True)
    return (partial(task, number, part) for number, part in enumerate(parts))


def part_sums(replica: Replica, workload: Workload, inputs: Arrays, targets: Any) -> tuple[Tensor, Any]:
    """Return the sums of correct predictions and of losses, shape (2,), and the outputs for a task's own metrics."""
    task = workload.task
    outputs = as_floats(replica.outputs(prepared(task, inputs)))
    loss = workload.loss.total(outputs, targets).double()
    if task.metrics is not None:
        return torch.stack([torch.zeros_like(loss), loss]), outputs
    right = correct(outputs, targets).sum().double() if task.metric == ACCURACY else torch.zeros_like(loss)
    return torch.stack([right, loss]), None


def sample_scores(replica: Replica, workload: Workload, inputs: Arrays, targets: Any) -> Tensor:
    """Return the share of correct predictions of each sample, NaN without accuracy, and its loss, shape (num, 2)."""
    outputs = as_floats(replica.outputs(prepared(workload.task, inputs)))
    losses = workload.loss.each(outputs, targets)
    right = correct(outputs, targets) if workload.task.metric == ACCURACY else torch.full_like(losses, torch.nan)
    return torch.stack([right.to(losses.dtype), losses], dim=1)


def add_parts(parts: Sequence[tuple[Tensor, Any]]) -> Tensor:
    """Return the sum of the `part_sums`, added in order."""
    return reduce(torch.add, [sums for sums, _ in parts])


def make_score(workload: Workload, parts: Sequence[tuple[Tensor, Any]]) -> Score:
    """Return the score on the test data, given the `part_sums`."""
    task, count, outputs = workload.task, num_samples(workload.test_targets), [outputs for _, outputs in parts]
    right, loss = (one / count for one in add_parts(parts).tolist())
    if task.metrics is None:
        return Score({ACCURACY: right} if task.metric == ACCURACY else {TEST_LOSS: loss}, loss)
    if not all(isinstance(leaf, Tensor) and leaf.dim() for leaf in leaves_of(outputs[0])):
        raise InputError(
            "model must return tensors with one row per sample, or tuples or dicts of them, for these metrics, got "
            f"{describe_tree(outputs[0])}"
        )
    whole, targets = map_tensors(Tensor.cpu, (join(outputs), workload.test_targets))
    return Score(measured(task, whole, targets), loss)


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
        check_metric_name(name)
        try:
            values[name] = float(value)
        except (TypeError, ValueError):
            raise InputError(f"metrics must return a number for '{name}', got {type(value).__name__}") from None
    first = task.metric or next(iter(values))
    if first not in values:
        raise InputError(f"metric must be one of {', '.join(values)}, got '{first}'")
    return {first: values[first]} | values


def _name_of(function: Any) -> str:
    """Return a name for the number that a function returns."""
    name = getattr(function, "__name__", type(function).__name__)
    return name if name.isidentifier() else "score"

"""Tasks: training and test data, a model, a loss and metrics, and optionally the samples of each client."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lesson.core.arrays import IntArray
from lesson.core.errors import InputError, describe, raised_inside
from lesson.learn.metric import TARGETS
from lesson.learn.trees import describe_tree, leaves_of, map_tensors, num_samples

ModelFactory = Callable[[], nn.Module]
Arrays = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
"""Inputs or targets: one tensor, or several with the same number of samples."""
Loss = Callable[[Any, Any], Tensor]
Metrics = Callable[[Any, Any], Mapping[str, float] | float | Tensor]
ACCURACY, TEST_LOSS = "accuracy", "test_loss"


@dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """Your own learning task, for `lesson.run`, `lesson.compare` and `lesson.sweep`.

    Arrays may be NumPy arrays, tensors or lists. Double-precision floats are stored in 32 bits, and integers, except
    bytes of inputs, in 64 bits. Inputs and targets may each be one array, or a tuple or dict of arrays. The model is
    called as `model(inputs)` with one array, as `model(*inputs)` with a tuple and as `model(**inputs)` with a dict.

    Attributes:
        train: Inputs and targets of the training samples.
        test: Inputs and targets of the test samples.
        model: Function or class that returns a new `nn.Module`. Clients exchange its trainable parameters and the
            float buffers that training changes, such as the running means of BatchNorm.
        clients: Indices of the training samples of each client. By default, the training samples are split as the
            settings of [data] prescribe. If there are more clients than [fleet] num_clients, some of them are drawn.
        loss: Function of outputs and targets that returns one value per sample, or an array of values per sample,
            whose mean counts. Functions of `torch.nn.functional` are called with reduction="none". The default is
            cross-entropy, for integer targets.
        metrics: Function of all outputs and targets of the test set that returns numbers by name, or one number. The
            default is `accuracy` for integer targets, otherwise `test_loss`.
        metric: Name of the metric by which runs are compared, in tables, figures and times to target scores. The
            default is the first one.
        higher_is_better: Whether larger values of this metric are better.
        target_scores: Values of this metric for which the time to reach them is reported. The default is 0.5, 0.6,
            0.7, 0.8, 0.9 and 0.95 for accuracy, and none for other metrics.
        class_names: Names of the classes, for reports.
        prepare: Function that is applied to the inputs of each minibatch, for example to convert bytes to floats.
        name: Name of the task in settings, results and reports.

    Raises:
        InputError: The arrays do not fit together, or an argument is invalid.
    """

    train: tuple[Any, Any]
    test: tuple[Any, Any]
    model: ModelFactory
    clients: Sequence[Any] | None = None
    loss: Loss | None = None
    metrics: Metrics | None = None
    metric: str = ""
    higher_is_better: bool = True
    target_scores: Sequence[float] | None = None
    class_names: Sequence[str] = ()
    prepare: Callable[[Any], Any] | None = None
    name: str = "task"

    def __post_init__(self) -> None:
        if not callable(self.model) or isinstance(self.model, nn.Module):
            got = f"a module ({type(self.model).__name__})" if callable(self.model) else repr(self.model)[:80]
            raise InputError(f"model must be a function or class that returns a new nn.Module, got {got}")
        for name in ("loss", "metrics", "prepare"):
            if not (getattr(self, name) is None or callable(getattr(self, name))):
                raise InputError(f"{name} must be a function, got {getattr(self, name)!r:.80}")
        train, test = _samples("train", self.train), _samples("test", self.test)
        _check_alike("inputs", train[0], test[0])
        _check_alike("targets", train[1], test[1])
        changes: dict[str, Any] = {"train": train, "test": test, "class_names": tuple(map(str, self.class_names))}
        if self.clients is not None:
            changes["clients"] = _indices(self.clients, num_samples(train[1]))
        if self.loss is None and not _is_whole(train[1]):
            example = "such as loss=torch.nn.functional.mse_loss"
            raise InputError(f"loss must be given, {example}: cross-entropy, the default, needs integer targets")
        changes |= self._metric(is_accuracy=self.metrics is None and _is_whole(train[1]))
        for name, value in changes.items():
            object.__setattr__(self, name, value)

    def _metric(self, is_accuracy: bool) -> dict[str, Any]:
        """Return the fields about the metric of the task, with their defaults filled in."""
        scores: tuple[float, ...] = TARGETS if is_accuracy else ()
        scores = scores if self.target_scores is None else _target_scores(self.target_scores)
        if self.metrics is not None:
            return {"target_scores": scores}
        only = ACCURACY if is_accuracy else TEST_LOSS
        if self.metric not in ("", only):
            raise InputError(f"metric must be '{only}' unless metrics is given, got '{self.metric}'")
        return {"target_scores": scores, "metric": only, "higher_is_better": is_accuracy}

    @property
    def labels(self) -> IntArray | None:
        """The class of each training sample, if targets are class labels; otherwise None."""
        targets = self.train[1]
        if not (isinstance(targets, Tensor) and targets.dim() == 1 and _is_whole(targets)):
            return None
        labels: IntArray = targets.numpy()
        return labels if labels.min() >= 0 else None

    @property
    def num_classes(self) -> int | None:
        """Number of classes if the metric is the accuracy on class labels, otherwise None."""
        labels = self.labels
        if labels is None or self.metrics is not None:
            return None
        return len(self.class_names) or max(int(labels.max()), int(self.test[1].max())) + 1


def _is_whole(arrays: Arrays) -> bool:
    return isinstance(arrays, Tensor) and not arrays.is_floating_point() and not arrays.is_complex()


def _samples(part: str, given: Any) -> tuple[Arrays, Arrays]:
    """Return inputs and targets as tensors."""
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise InputError(f"{part} must be a pair (inputs, targets), got {type(given).__name__}")
    inputs, targets = _arrays(f"{part} inputs", given[0]), _arrays(f"{part} targets", given[1])
    targets = map_tensors(lambda one: one.long() if one.dtype == torch.uint8 else one, targets)
    counts = list(dict.fromkeys(len(one) for one in (*leaves_of(inputs), *leaves_of(targets))))
    if len(counts) > 1:
        raise InputError(
            f"{part} inputs and targets must have the same number of samples, got {' and '.join(map(str, counts))}"
        )
    if counts == [0]:
        raise InputError(f"{part} must have at least one sample, got none")
    return inputs, targets


def _arrays(name: str, given: Any) -> Arrays:
    if isinstance(given, dict | tuple) and not given:
        raise InputError(f"{name} must not be empty")
    if isinstance(given, dict):
        return {str(key): _tensor(f"{name} '{key}'", value) for key, value in given.items()}
    if isinstance(given, tuple):
        return tuple(_tensor(f"{name}, array {place}", value) for place, value in enumerate(given))
    return _tensor(name, given)


def _tensor(name: str, given: Any) -> Tensor:
    """Return an array as a tensor on the CPU; 64-bit floats are converted to 32 bits, integers except bytes to 64."""
    if isinstance(given, Tensor):
        tensor = given.detach().cpu()
    else:
        try:
            array = np.asarray(given)
            tensor = torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))
        except (TypeError, ValueError) as error:
            uneven = isinstance(given, list) and isinstance(error, ValueError)
            why = "got a list with entries of different lengths; pad them" if uneven else describe(error)
            raise InputError(f"{name} must be an array of numbers of one shape: {why}") from raised_inside(error)
    if not tensor.dim():
        raise InputError(f"{name} must be an array with one entry per sample, got a single value")
    if tensor.is_complex():
        raise InputError(f"{name} must be real numbers, got {tensor.dtype}")
    if tensor.dtype == torch.float64:
        return tensor.float()
    if tensor.is_floating_point() or tensor.dtype in (torch.bool, torch.uint8):
        return tensor
    return tensor.long()


def _check_alike(name: str, train: Arrays, test: Arrays) -> None:
    """Raise InputError unless training and test arrays have the same structure, types and shapes of samples."""
    ours, theirs = (describe_tree(map_tensors(lambda one: one[:0], part)) for part in (train, test))
    if type(train) is not type(test) or ours != theirs:
        raise InputError(
            f"train and test {name} must have the same type and shape of samples, "
            f"got {describe_tree(train)} and {describe_tree(test)}"
        )


def _indices(clients: Sequence[Any], count: int) -> list[IntArray]:
    """Return the samples of each client as arrays."""
    parts = []
    for client, given in enumerate(clients):
        samples = np.asarray(given.cpu() if isinstance(given, Tensor) else given)
        if not samples.size:
            raise InputError(f"clients[{client}] must have at least one sample, got none; leave this client out")
        if samples.ndim != 1 or samples.dtype.kind not in "iu":
            got = f"{samples.dtype} of shape {samples.shape}"
            raise InputError(f"clients[{client}] must be a list of indices of training samples, got {got}")
        if np.any(wrong := (samples < 0) | (samples >= count)):
            raise InputError(f"clients[{client}] must have indices from 0 to {count - 1}, got {samples[wrong][0]}")
        parts.append(samples.astype(np.int64))
    if not parts:
        raise InputError("clients must have at least one client, got none")
    return parts


def _target_scores(given: Sequence[float]) -> tuple[float, ...]:
    scores = np.asarray(given)
    if scores.dtype.kind not in "iuf" or scores.ndim != 1 or not np.isfinite(scores).all():
        raise InputError(f"target_scores must be a list of finite numbers, got {given!r}")
    return tuple(map(float, scores))

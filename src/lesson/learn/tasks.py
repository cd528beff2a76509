"""Built-in tasks, and loading of tasks by name."""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lesson.core.errors import InputError, describe, raised_inside, unknown
from lesson.core.plugins import load_named
from lesson.learn.data.load import data_dir, load_samples
from lesson.learn.data.samples import Samples
from lesson.learn.data.shakespeare import read_shakespeare
from lesson.learn.data.synthetic import NUM_CLASSES, NUM_FEATURES, draw_synthetic
from lesson.learn.models import CifarNet, MnistNet
from lesson.learn.networks import CharLstm, CharTransformer, FemnistNet, GroupNormResNet, LogisticRegression
from lesson.learn.task import ModelFactory, Task
from lesson.learn.template import Template
from lesson.settings.settings import Settings

Folder = Path | str | None
BITS_PER_VALUE = 32
"""Bits of an uploaded value."""
NUM_CHARACTERS = 65
"""Distinct characters of the Shakespeare text."""
TaskSource = Task | Callable[..., Task] | str | None
"""A task, a function that returns one, the name of either, or None for the task in the settings."""


@dataclass(frozen=True)
class BuiltInTask:
    """A task that `--dataset NAME` selects."""

    about: str
    """Data and network, in one line."""
    network: ModelFactory
    """Returns a new model, without loading the data."""
    make: Callable[..., Task]
    """Called with the folder of data sets and the options of [task]."""

    @property
    def options(self) -> dict[str, Any]:
        """Options of [task] with their defaults."""
        parameters = list(inspect.signature(self.make).parameters.values())[1:]
        return {one.name: one.default for one in parameters}


def image_task(name: str, samples: Samples, model: ModelFactory) -> Task:
    """Return the task of classifying images; the model gets them as floats in [0, 1]."""
    samples = replace(
        samples,
        train_inputs=np.ascontiguousarray(samples.train_inputs.transpose(0, 2, 3, 1)),
        test_inputs=np.ascontiguousarray(samples.test_inputs.transpose(0, 2, 3, 1)),
    )
    return _task_of(name, samples, model, prepare=scaled)


def scaled(images: Tensor) -> Tensor:
    """Convert bytes in channels-last order to floats in [0, 1] of shape (num, channels, height, width).

    The memory layout stays channels-last, in which convolutions are fastest.
    """
    values = torch.empty(images.shape, device=images.device)
    return torch.div(images, 255, out=values).permute(0, 3, 1, 2)


def _task_of(name: str, samples: Samples, model: ModelFactory, prepare: Callable[[Any], Any] | None = None) -> Task:
    return Task(
        train=(samples.train_inputs, samples.train_targets),
        test=(samples.test_inputs, samples.test_targets),
        model=model,
        clients=samples.clients,
        prepare=prepare,
        class_names=samples.class_names,
        name=name,
    )


def _load_images(name: str, dataset: str, network: ModelFactory, folder: Folder) -> Task:
    return image_task(name, load_samples(dataset, folder), network)


def _images(about: str, network: ModelFactory, name: str, dataset: str = "") -> BuiltInTask:
    """Return a task of classifying the images of a data set, by default the one with the name of the task."""
    return BuiltInTask(about, network, partial(_load_images, name, dataset or name, network))


def _shakespeare(name: str, folder: Folder, sequence_length: int = 80, min_chars: int = 1000) -> Task:
    samples = read_shakespeare(data_dir(folder), sequence_length=sequence_length, min_chars=min_chars)
    is_lstm = name == "shakespeare"
    return _task_of(name, samples, _char_lstm if is_lstm else partial(_char_transformer, sequence_length))


def _synthetic(folder: Folder, alpha: float = 1.0, beta: float = 1.0, num_clients: int = 100, seed: int = 0) -> Task:  # noqa: ARG001
    samples = draw_synthetic(alpha=alpha, beta=beta, num_clients=num_clients, seed=seed)
    return _task_of("synthetic", samples, _logistic_regression)


_resnet_100 = partial(GroupNormResNet, num_classes=100)
_char_lstm = partial(CharLstm, NUM_CHARACTERS)
_char_transformer = partial(CharTransformer, NUM_CHARACTERS)
_logistic_regression = partial(LogisticRegression, NUM_FEATURES, NUM_CLASSES)
BUILT_IN: dict[str, BuiltInTask] = {
    "mnist": _images("MNIST digits with the paper's network, LeNet-5", MnistNet, "mnist"),
    "fashion-mnist": _images("Fashion-MNIST with LeNet-5", MnistNet, "fashion-mnist"),
    "cifar10": _images("CIFAR-10 with the paper's network of four convolutions", CifarNet, "cifar10"),
    "cifar10-resnet": _images(
        "CIFAR-10 with ResNet-8 and group normalization", GroupNormResNet, "cifar10-resnet", "cifar10"
    ),
    "cifar100": _images("CIFAR-100 with ResNet-8 and group normalization", _resnet_100, "cifar100"),
    "femnist": _images("FEMNIST, a client per writer, with LEAF's network", FemnistNet, "femnist"),
    "shakespeare": BuiltInTask(
        "Next character, a client per speaking role, with an LSTM", _char_lstm, partial(_shakespeare, "shakespeare")
    ),
    "shakespeare-transformer": BuiltInTask(
        "Next character, a client per speaking role, with a transformer",
        _char_transformer,
        partial(_shakespeare, "shakespeare-transformer"),
    ),
    "synthetic": BuiltInTask(
        "Synthetic(α, β) of FedProx, 60 features, with logistic regression",
        _logistic_regression,
        _synthetic,
    ),
}


def task_of(settings: Settings, folder: Folder = None, given: Task | Callable[..., Task] | None = None) -> Task:
    """Return the task that the settings name, with the arguments of [task]; raise InputError if it is invalid.

    A given task, or function that returns one, replaces it.
    """
    if given is not None:
        return call_maker(getattr(given, "__name__", "task"), given, dict(settings.task.options))
    name, options = settings.data.dataset, json.dumps(settings.task.options, sort_keys=True)
    return _task(name, _maker(name), options, None if folder is None else str(folder))


@lru_cache(maxsize=1)  # consecutive runs in one process mostly have the same task
def _task(name: str, make: Any, options: str, folder: str | None) -> Task:
    """Return the task of a function; a function that was edited and reloaded is called again."""
    return _called(name, make, json.loads(options), folder)


def load_task(name: str, options: Mapping[str, Any] | None = None, data_dir: Folder = None) -> Task:
    """Return a task by name: a built-in one, or the result of your `module:function`.

    Args:
        name: Name from `lesson tasks`, or `module:function`.
        options: Arguments of the function.
        data_dir: Folder for data sets; by default, LESSON_DATA_DIR or a folder in the user's cache.

    Raises:
        InputError: There is no such task, an option is unknown, or the data of the task is missing or damaged.
    """
    return _called(name, _maker(name), dict(options or {}), data_dir)


def _called(name: str, make: Any, options: dict[str, Any], folder: Folder) -> Task:
    """Return the task that a function returns; only functions of built-in tasks get the folder of data sets."""
    return call_maker(name, make if ":" in name else partial(make, folder), options)


def _maker(name: str) -> Any:
    """Return the function that returns a task, given the name of a built-in task or module:function."""
    if ":" in name:
        return load_named("task", name, "module:function")
    if name not in BUILT_IN:
        raise unknown("dataset", name, BUILT_IN)
    return BUILT_IN[name].make


def call_maker(name: str, make: Any, options: dict[str, Any]) -> Task:
    """Return the task that a function returns; raise InputError if it fails or returns something else."""
    if isinstance(make, Task):
        if options:
            raise InputError(
                f"[task] must be empty for a Task object, which takes no options, got {', '.join(options)}"
            )
        return make
    if not callable(make):
        raise InputError(f"task '{name}' must be a function that returns a lesson.Task, got {type(make).__name__}")
    _check_options(name, make, options)
    try:
        task = make(**options)
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # a custom function may raise anything
        raise InputError(f"task '{name}' failed: {describe(error)}") from raised_inside(error)
    if not isinstance(task, Task):
        raise InputError(f"task '{name}' must return a lesson.Task, got {type(task).__name__}")
    return task


def _check_options(name: str, make: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise InputError if an option is not an argument of the function, or if a required argument is missing."""
    parameters = inspect.signature(make).parameters.values()
    if not any(one.kind is one.VAR_KEYWORD for one in parameters):
        known = [one.name for one in parameters]
        for option in options:
            if option not in known:
                raise unknown("option", option, known, section="task", to=name)
    for one in parameters:
        needed = one.default is one.empty and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        if needed and one.name not in options:
            raise InputError(f"task '{name}' needs the argument {one.name}; set it with --set task.{one.name}=VALUE")


class Exchanged(NamedTuple):
    """How many values clients exchange."""

    parameters: Sequence[int]
    """Number of values of each trained parameter."""
    buffers: int = 0
    """Number of values of all buffers that training changes."""

    @property
    def bits(self) -> int:
        """Size of a model that is not compressed."""
        return BITS_PER_VALUE * (sum(self.parameters) + self.buffers)


def count_values(settings: Settings, task: Task | None = None, folder: Folder = None) -> Exchanged:
    """Return how many values clients exchange; `task` replaces the one in the settings.

    The data of a built-in task is loaded only if it has options.
    """
    name = settings.data.dataset
    if task is not None or name not in BUILT_IN or settings.task.options:
        template = Template(task or task_of(settings, folder), settings.run.seed)
        return Exchanged(template.parameter_sizes, template.num_values - sum(template.parameter_sizes))
    with torch.random.fork_rng(devices=[]):
        return Exchanged([one.numel() for one in BUILT_IN[name].network().parameters() if one.requires_grad])

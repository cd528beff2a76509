"""Built-in tasks, and loading of tasks by name."""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lesson.core.errors import InputError, describe, raised_inside, unknown
from lesson.core.plugins import load_named
from lesson.fleet.measured import samples_note, with_listed_clients
from lesson.learn.data.load import data_dir, load_samples
from lesson.learn.data.samples import Samples
from lesson.learn.data.shakespeare import read_shakespeare
from lesson.learn.data.synthetic import draw_synthetic
from lesson.learn.models import cifar_net, mnist_net
from lesson.learn.networks import CharLstm, CharTransformer, FemnistNet, GroupNormResNet, LogisticRegression
from lesson.learn.task import ModelFactory, Task
from lesson.learn.template import Template
from lesson.learn.workload import BITS_PER_VALUE
from lesson.settings.settings import Settings

Folder = Path | str | None
NUM_CHARACTERS = 65
"""Distinct characters of the Shakespeare text."""
UNUSUAL = 10.0
"""A note is printed if the actual size of an upload differs from that in the settings by more than this factor."""
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
    is_natural: bool = False
    """Whether the task has a natural split."""

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


def _images(
    about: str, network: ModelFactory, name: str, dataset: str = "", *, is_natural: bool = False
) -> BuiltInTask:
    """Return a task of classifying the images of a data set, by default the one with the name of the task."""
    return BuiltInTask(about, network, partial(_load_images, name, dataset or name, network), is_natural)


def _shakespeare(folder: Folder, sequence_length: int = 80, min_chars: int = 1000) -> Task:
    samples = read_shakespeare(data_dir(folder), sequence_length=sequence_length, min_chars=min_chars)
    return _task_of("shakespeare", samples, _char_lstm)


def _shakespeare_transformer(folder: Folder, sequence_length: int = 80, min_chars: int = 1000) -> Task:
    samples = read_shakespeare(data_dir(folder), sequence_length=sequence_length, min_chars=min_chars)
    return _task_of("shakespeare-transformer", samples, partial(CharTransformer, NUM_CHARACTERS, sequence_length))


def _synthetic(folder: Folder, alpha: float = 1.0, beta: float = 1.0, num_clients: int = 100, seed: int = 0) -> Task:  # noqa: ARG001
    samples = draw_synthetic(alpha=alpha, beta=beta, num_clients=num_clients, seed=seed)
    return _task_of("synthetic", samples, _logistic_regression)


_resnet_100 = partial(GroupNormResNet, num_classes=100)
_char_lstm = partial(CharLstm, NUM_CHARACTERS)
_char_transformer = partial(CharTransformer, NUM_CHARACTERS)
_logistic_regression = partial(LogisticRegression, num_features=60, num_classes=10)
BUILT_IN: dict[str, BuiltInTask] = {
    "mnist": _images("MNIST digits with the paper's network, LeNet-5", mnist_net, "mnist"),
    "fashion-mnist": _images("Fashion-MNIST with LeNet-5", mnist_net, "fashion-mnist"),
    "cifar10": _images("CIFAR-10 with the paper's network of four convolutions", cifar_net, "cifar10"),
    "cifar10-resnet": _images(
        "CIFAR-10 with ResNet-8 and group normalization", GroupNormResNet, "cifar10-resnet", "cifar10"
    ),
    "cifar100": _images("CIFAR-100 with ResNet-8 and group normalization", _resnet_100, "cifar100"),
    "femnist": _images("FEMNIST, a client per writer, with LEAF's network", FemnistNet, "femnist", is_natural=True),
    "shakespeare": BuiltInTask(
        "Next character, a client per speaking role, with an LSTM", _char_lstm, _shakespeare, is_natural=True
    ),
    "shakespeare-transformer": BuiltInTask(
        "Next character, a client per speaking role, with a transformer",
        _char_transformer,
        _shakespeare_transformer,
        is_natural=True,
    ),
    "synthetic": BuiltInTask(
        "Synthetic(α, β) of FedProx, 60 features, with logistic regression",
        _logistic_regression,
        _synthetic,
        is_natural=True,
    ),
}


def task_of(settings: Settings, folder: Folder = None) -> Task:
    """Return the task that the settings name, with the arguments of [task]; raise InputError if it is invalid."""
    name, options = settings.data.dataset, json.dumps(settings.task.options, sort_keys=True)
    return _task(name, _maker(name), options, None if folder is None else str(folder))


@lru_cache(maxsize=1)  # consecutive runs in one process mostly have the same task
def _task(name: str, make: Any, options: str, folder: str | None) -> Task:
    """Return the task of a function; a function that was edited and reloaded is called again."""
    return _called(name, make, json.loads(options), folder)


def forget_tasks() -> None:
    """Free the task that `task_of` loaded last."""
    _task.cache_clear()


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


def resolve_task(given: TaskSource, settings: Settings, folder: Folder = None) -> Task:
    """Return a task that is given as an object, a function or a name; None stands for the task in the settings."""
    if given is None:
        return task_of(settings, folder)
    if isinstance(given, str):
        return load_task(given, settings.task.options, folder)
    return call_maker(getattr(given, "__name__", "task"), given, dict(settings.task.options))


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
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # some functions written in C have none
        return
    if not any(one.kind is one.VAR_KEYWORD for one in parameters):
        known = [one.name for one in parameters]
        for option in options:
            if option not in known:
                listed = unknown("option", option, known, section="task", to=name) if known else None
                raise listed or InputError(f"[task] unknown option '{option[:80]}' for {name}, which has none")
    for one in parameters:
        needed = one.default is one.empty and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        if needed and one.name not in options:
            raise InputError(f"task '{name}' needs the argument {one.name}; set it with --set task.{one.name}=VALUE")


def prepare_task(settings: Settings, folder: Folder = None) -> tuple[Settings, list[str]]:
    """Return the settings fitted to their task, and notes about clients and model, one line each.

    Your own task is loaded, so that errors in it are found before any run starts. A built-in task is loaded only if
    it has options.
    """
    settings = with_listed_clients(settings)
    fitted, caveats = settle_split(settings), list[str]()
    if ":" in settings.data.dataset or settings.task.options:
        fitted = fit_to_task(settings, task_of(settings, folder))
        if (there := fitted.fleet.num_clients) != settings.fleet.num_clients:
            caveats.append(f"num_clients = {there}, the number of clients of the task")
    if fitted.data.split != settings.data.split:
        caveats.append("split = natural: the task lists the samples of its clients; another split ignores them")
    caveats += samples_note(fitted)
    num_values, model_bits = count_values(settings, folder), settings.upload.model_bits
    if model_bits != "actual" and not 1 / UNUSUAL <= BITS_PER_VALUE * num_values / model_bits <= UNUSUAL:
        measured = settings.fleet.latencies or (settings.fleet.trace and not settings.radio.download)
        does = "counted" if measured else "charged"
        caveats.append(
            f"{'the traffic of ' if measured else ''}an upload is {does} as {model_bits / 1e3:,g} kbit, but the "
            f"{num_values:,} values that clients exchange have {BITS_PER_VALUE * num_values / 1e3:,.1f} kbit; with "
            f'model_bits = "actual", their actual size is {does}'
        )
    return fitted, caveats


def count_values(settings: Settings, folder: Folder = None) -> int:
    """Return how many values clients exchange; the data of a built-in task is loaded only if it has options."""
    name = settings.data.dataset
    if ":" in name or settings.task.options:
        return Template(task_of(settings, folder), settings.run.seed).num_values
    if name not in BUILT_IN:
        raise unknown("dataset", name, BUILT_IN)
    with torch.random.fork_rng(devices=[]):
        return sum(one.numel() for one in BUILT_IN[name].network().parameters() if one.requires_grad)


def with_actual_bits(settings: Settings, folder: Folder = None) -> Settings:
    """Return the settings with `model_bits` as a number: if it is "actual", 32 bits for each exchanged value."""
    if settings.upload.model_bits != "actual":
        return settings
    return settings.with_model_bits(float(BITS_PER_VALUE * count_values(settings, folder)))


def fit_to_task(settings: Settings, task: Task) -> Settings:
    """Return the settings with the natural split and no more clients than the task has, if it lists its clients."""
    if task.clients is None:
        return settings
    settings = with_natural_split(settings)
    if settings.data.split != "natural" or settings.fleet.num_clients <= len(task.clients):
        return settings
    if settings.fleet.latencies:
        listed = f"{settings.fleet.latencies} lists {settings.fleet.num_clients} clients"
        raise InputError(f"{listed}, but the task has {len(task.clients)}; remove some, or use another split")
    return settings.with_changes(num_clients=len(task.clients))


def with_natural_split(settings: Settings) -> Settings:
    """Return the settings of a task that lists its clients: the natural split replaces the default."""
    if not settings.has_natural_split:
        return settings
    return settings.model_copy(update={"data": settings.data.model_copy(update={"split": "natural"})})


def settle_split(settings: Settings) -> Settings:
    """Return the settings with the split that a built-in task uses."""
    name = settings.data.dataset
    return with_natural_split(settings) if name in BUILT_IN and BUILT_IN[name].is_natural else settings

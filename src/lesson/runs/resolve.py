"""Derives the settings that were not given and follow from the task, input files or the machine.

`resolve` is called once, when a run starts. Nothing changes settings after that, and config.toml lists derived ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lesson.core.errors import InputError
from lesson.fleet.allocation import find_allocation
from lesson.fleet.measured import latencies_vary, listed_clients, samples_note
from lesson.learn.backend import Backend
from lesson.learn.build import TrainingRun, build
from lesson.learn.compression import COMPRESSORS, check_custom, level_bits, level_of, make_compressor
from lesson.learn.device import device_of
from lesson.learn.task import Task
from lesson.learn.tasks import BITS_PER_VALUE, Exchanged, count_values, task_of
from lesson.learn.workload import Workload
from lesson.settings.settings import DERIVED, Settings
from lesson.strategies import make_strategy
from lesson.strategies.base import Strategy

UNUSUAL = 10.0
"""A note is printed if the actual size of an upload differs from that in the settings by more than this factor."""


@dataclass(frozen=True, eq=False)
class Resolved:
    """The settings of a run with all values known, its task and strategy, and notes for the user, one line each."""

    settings: Settings
    task: Task
    strategy: Strategy
    notes: list[str]

    def build(
        self, num_threads: int | None = None, connect: Callable[[Workload, Settings], Backend] | None = None
    ) -> TrainingRun:
        """Return the run; see `learn/build.py`."""
        return build(self.settings, self.task, self.strategy, num_threads, connect)


def resolve(
    settings: Settings, task: Task | None = None, data_dir: Path | str | None = None, begun: Settings | None = None
) -> Resolved:
    """Return the settings, task and strategy of a run on this machine.

    Given values are kept; those that do not fit are errors. Otherwise, the number of clients is that of the file of
    latencies, and at most that of a task that lists its clients; such a task has the natural split. "actual" becomes
    the size of the task's model, and "auto" the value of the resumed run or the best choice on this machine.

    Args:
        settings: Given settings; values that an earlier run derived are derived again.
        task: Task that replaces the one in the settings.
        data_dir: Folder for data sets.
        begun: Settings of the run that is resumed, if any.

    Raises:
        InputError: The strategy, the task or an input file is invalid, or a setting does not fit them or this machine.
    """
    given = Settings(**settings.given_sections())
    strategy = make_strategy(given.strategy.name, given.strategy.deadline_s, given.strategy.options)
    find_allocation(given.radio.allocation)
    own, task = task, task or task_of(given, data_dir)
    notes, clients = given.caveats(times_vary=latencies_vary(given)), _clients(given, task)
    if "fleet.num_clients" in clients and not given.fleet.latencies:
        notes.append(f"num_clients = {clients['fleet.num_clients']}, the number of clients of the task")
    if "data.split" in clients:
        notes.append("split = natural: the task lists the samples of its clients; another split ignores them")
    derived = given.with_derived(clients | _hardware(given, begun))
    exchanged = count_values(given, own, data_dir)
    derived = derived.with_derived(_upload(given, exchanged))
    return Resolved(derived, task, strategy, [*notes, *samples_note(derived), *_size_note(derived, exchanged.bits)])


def with_upload_bits(settings: Settings) -> Settings:
    """Return the settings with the size of an upload as a number, for a plan, which has no run."""
    if settings.upload.model_bits != "actual" and settings.upload.compression == "none":
        return settings
    return settings.with_derived(_upload(settings, count_values(settings)))


def compressed_bits(settings: Settings, model_bits: float) -> dict[str, float]:
    """Return the size of an upload with each built-in compressor at its usual level, if a model has `model_bits`."""
    exchanged, bits = count_values(settings), {"none": model_bits}
    for name, kind in COMPRESSORS.items():
        sizes = level_bits(kind(), exchanged.parameters, exchanged.buffers, kind.level, model_bits)
        bits[f"{name} {kind.level:g}"] = sizes[str(float(kind.level))]
    return bits


def _upload(given: Settings, exchanged: Exchanged) -> dict[str, Any]:
    """Return the size of a model if it is "actual", and the compressor's level and the sizes of its uploads."""
    upload, values = given.upload, dict[str, Any]()
    if upload.level_bits:
        raise InputError("[upload] level_bits follows from the model; remove it")
    model_bits = upload.model_bits
    if model_bits == "actual":
        values["upload.model_bits"] = model_bits = float(exchanged.bits)
    if (compressor := make_compressor(upload)) is not None:
        level = level_of(compressor, upload)
        if upload.level is None:
            values["upload.level"] = level
        if ":" in upload.compression:
            check_custom(compressor, exchanged.parameters, level)
        sizes = exchanged.parameters, exchanged.buffers
        values["upload.level_bits"] = level_bits(compressor, *sizes, level, model_bits)
    return values


def _clients(given: Settings, task: Task) -> dict[str, Any]:
    """Return the number of clients and the split, as far as a file of latencies or the task determines them."""
    values: dict[str, Any] = {}
    count = given.fleet.num_clients
    if given.fleet.latencies:
        count = len(listed_clients(given))
        values = {} if given.is_given("fleet.num_clients") else {"fleet.num_clients": count}
    if task.clients is None or not given.has_natural_split:
        return values
    if given.data.split != "natural":
        values["data.split"] = "natural"
    if count > len(task.clients):
        if given.fleet.latencies:
            listed = f"{given.fleet.latencies} lists {count} clients"
            raise InputError(f"{listed}, but the task has {len(task.clients)}; remove some, or use another split")
        if not given.is_given("fleet.num_clients"):  # otherwise, it is an error when clients are chosen
            values["fleet.num_clients"] = len(task.clients)
    return values


def _hardware(given: Settings, begun: Settings | None) -> dict[str, Any]:
    """Return values for those settings of [run] that are "auto", as far as they are known."""
    limits = given.run
    names = [key.partition(".")[2] for key in DERIVED if key.startswith("run.")]
    values = {} if begun is None else {name: getattr(begun.run, name) for name in names}
    values = {name: value for name, value in values.items() if getattr(limits, name) == "auto"}
    try:
        here = dict(zip(("device", "precision"), device_of(limits.model_copy(update=values)), strict=True))
    except InputError as error:
        if values.get("device") != "cuda":
            raise
        raise InputError(f"the run was started on a GPU: {error}") from None
    values |= {name: value for name, value in here.items() if getattr(limits, name) == "auto"}
    return {f"run.{name}": value for name, value in values.items() if value != "auto"}


def _size_note(settings: Settings, num_bits: int) -> list[str]:
    """Return a note if the size of an upload in the settings is far from that of the task's model."""
    charged_bits = settings.upload.whole_bits
    if 1 / UNUSUAL <= num_bits / charged_bits <= UNUSUAL:
        return []
    measured = settings.fleet.latencies or (settings.fleet.trace and not settings.radio.download)
    does = "counted" if measured else "charged"
    what = "an upload" if settings.upload.compression == "none" else "an uncompressed upload"
    return [
        f"{'the traffic of ' if measured else ''}{what} is {does} as {charged_bits / 1e3:,g} kbit, but the "
        f"{num_bits / BITS_PER_VALUE:,.0f} values that clients exchange have {num_bits / 1e3:,.1f} kbit; with "
        f'model_bits = "actual", their actual size is {does}'
    ]

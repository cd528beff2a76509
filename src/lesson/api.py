"""The functions of `import lesson`: run, compare, sweep, tune, reproduce, plan and load.

Settings given by name, as in `compare(["lesson", "fedavg"], beta=0.1)`, override those in `settings`, or the defaults.
"""

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from rich.console import Console

from lesson.core.errors import ArgumentError, InputError, RunStoppedError
from lesson.experiments.engines import Engine, make_engine
from lesson.experiments.folder import MARKER
from lesson.experiments.grid import compare_strategies, flat_axes, load_grid, make_grid
from lesson.experiments.loading import load
from lesson.experiments.missing import run_missing
from lesson.experiments.naming import run_name
from lesson.experiments.run import Run
from lesson.experiments.study import Study
from lesson.experiments.tuning.file import STRATEGIES, Tuning
from lesson.experiments.tuning.study import TunedStudy
from lesson.experiments.tuning.tune import tune as tune_entries
from lesson.fleet.fleet import Fleet, draw_fleet
from lesson.learn.task import Task
from lesson.learn.tasks import TaskSource, task_of
from lesson.paper.items import select_items
from lesson.paper.reproduce import plan_reproduction
from lesson.paper.scale import make_scale
from lesson.planning.plan import Plan, make_plan, propose_deadline_s
from lesson.report.paper.write import Reproduction, write_reproduction
from lesson.report.progress import RunProgress, StudyProgress
from lesson.runs.execute import execute
from lesson.runs.resolve import compressed_bits, resolve, with_upload_bits
from lesson.runs.trackers import Tracker, checked_trackers
from lesson.settings.settings import Settings

__all__ = ["compare", "load", "plan", "reproduce", "run", "sweep", "tune"]


def run(
    strategy: str | None = None,
    *,
    out: Path | str | None = None,
    settings: Settings | None = None,
    options: Mapping[str, Any] | None = None,
    resume: bool = True,
    data_dir: Path | str | None = None,
    task: Task | Callable[..., Task] | str | None = None,
    trackers: Sequence[Tracker | str] = (),
    **changes: Any,
) -> Run:
    """Train one strategy and return the finished run.

    If the folder holds a finished run with the same settings, input files and code, it is loaded instead of executed.
    The data and the model of a `Task` object are not compared: if you change them, choose another folder.

    Args:
        strategy: Name of a strategy, or `module:Class`; by default, the one in the settings, "lesson".
        out: Output folder; by default, a subfolder of runs/ named after the settings.
        settings: Settings of the run; by default, `Settings()`.
        options: Options of the strategy, such as `{"late": "drop"}`; see `lesson strategies NAME`.
        resume: Whether to resume an unfinished run in the folder; otherwise, it is an error.
        data_dir: Folder for data sets; by default, LESSON_DATA_DIR or a folder in the user's cache.
        task: Your own task: a `Task`, a function that returns one, or "module:function"; by default, the task of the
            setting `dataset`. A `Task`, or a function that other processes cannot import, requires `out`.
        trackers: Trackers by name, `module:Class` or as objects.
        **changes: Settings by name, such as `beta=0.1`, which override those in `settings`.

    Raises:
        InputError: An argument or a setting is invalid, or the folder holds something else.
        RunStoppedError: The run cannot continue, for example because the disk is full.
        DivergedError: Training has diverged.
    """
    followers = checked_trackers(trackers)
    base, own = _with_task(_settings(settings, changes), task, out)
    if strategy is None or strategy == base.strategy.name:
        strategy, options = base.strategy.name, base.strategy.options | dict(options or {})
    chosen = base.with_strategy(strategy, dict(options or {}))
    path = Path(out) if out is not None else Path("runs") / run_name(chosen)
    parts: dict[str, Any] = {"data_dir": data_dir, "task": own, "trackers": followers, "tell": _note}
    with _continued_by_repeating(), RunProgress(chosen.run) as progress:
        execute(chosen, path, resume=resume, progress=progress.report, **parts)
    return Run.load(path)


def compare(
    strategies: Sequence[str],
    *,
    num_seeds: int = 3,
    out: Path | str | None = None,
    settings: Settings | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    resume: bool = True,
    num_processes: int | None = None,
    num_lanes: int | None = None,
    data_dir: Path | str | None = None,
    task: Task | Callable[..., Task] | str | None = None,
    trackers: Sequence[Tracker | str] = (),
    **changes: Any,
) -> Study:
    """Train several strategies with the same settings and seeds, and return the study.

    Finished runs in `out` are not executed again.

    Args:
        strategies: Names of strategies, or `module:Class`.
        num_seeds: Number of seeds, from 1 to 1000, starting with the settings' `seed`.
        out: Output folder, with one subfolder per run; by default, a subfolder of runs/ named after the settings.
        settings: Settings of all runs; by default, `Settings()`.
        options: Options of individual strategies, such as `{"fedbuff": {"concurrency": 5}}`.
        resume: Whether to resume unfinished runs in the folder; otherwise, they are an error.
        num_processes: Number of processes; by default, one per core.
        num_lanes: Number of runs that each GPU trains at a time; by default, two per core, at most 32. Fewer if its
            memory does not suffice.
        data_dir: Folder for data sets; by default, LESSON_DATA_DIR or a folder in the user's cache.
        task: Your own task: a `Task`, a function that returns one, or "module:function"; by default, the task of the
            setting `dataset`. A `Task`, or a function that other processes cannot import, requires `out`.
        trackers: Trackers by name, `module:Class` or as objects; each process gets a copy.
        **changes: Settings by name, such as `beta=0.1`, which override those in `settings`.

    Returns:
        A study with one label, the strategy. Runs that failed are listed in its `failures`.

    Raises:
        InputError: An argument or a setting is invalid, or the folder holds something else.
        RunStoppedError: All runs failed.
    """
    base, own = _with_task(_settings(settings, changes), task, out)
    engine = make_engine(num_processes=num_processes, num_lanes=num_lanes, data_dir=data_dir, task=own)
    plan = compare_strategies(base, strategies, num_seeds, options, own_task=own is not None)
    path = Path(out) if out is not None else Path("runs") / _comparison_name(base)
    followers = checked_trackers(trackers)
    if not (path / MARKER).exists():  # finished runs need no data
        for note in resolve(next(iter(plan.runs.values())), own, data_dir).notes:
            _note(note)
    return _execute(run_missing, plan, path, engine, on_error="stop", resume=resume, trackers=followers)


def sweep(
    source: Path | str | Mapping[str, Sequence[Any]],
    *,
    num_seeds: int = 1,
    out: Path | str | None = None,
    settings: Settings | None = None,
    overrides: Sequence[str] = (),
    resume: bool = True,
    engine: Engine | None = None,
    task: Task | Callable[..., Task] | str | None = None,
    trackers: Sequence[Tracker | str] = (),
    **changes: Any,
) -> Study:
    """Train every combination of the values listed for several settings, and return the study.

    For example, `sweep({"beta": [0.1, 1.0], "strategy": ["lesson", "fedavg"]}, num_seeds=3)` executes 12 runs. Finished
    runs in `out` are not executed again, and unfinished ones are resumed.

    Args:
        source: Lists of values by name or section.key; or a settings file with a table [sweep], which also sets all
            other settings and the seeds.
        num_seeds: Number of seeds, from 1 to 1000, starting with the settings' `seed`; only if `source` is a mapping.
        out: Output folder, with one subfolder per run; by default, runs/sweep or a folder named after the file.
        settings: Settings that all runs share; only if `source` is a mapping.
        overrides: Changes of settings that all runs share, as `section.key=value`; only if `source` is a file.
        resume: Whether to resume unfinished runs in the folder; otherwise, they are an error.
        engine: Executes the runs; by default, one process per core.
        task: Your own task: a `Task`, a function that returns one, or "module:function"; only if `source` is a mapping.
            A `Task`, or a function that other processes cannot import, requires `out` and the default engine.
        trackers: Trackers by name, `module:Class` or as objects; each process gets a copy.
        **changes: Settings by name that all runs share; only if `source` is a mapping.

    Returns:
        A study labeled by the settings that vary. Runs that failed are listed in its `failures`.

    Raises:
        InputError: An argument, a setting or the file is invalid, or the folder holds something else.
        RunStoppedError: All runs failed.
    """
    own = None
    if isinstance(source, Mapping):
        axes = flat_axes(source)
        for key in axes.keys() & flat_axes(changes).keys():
            raise InputError(f"{key} must be set only once, got it in source and as an argument")
        base, own = _with_task(_settings(settings, changes), task, out)
        plan = make_grid(base.given_sections(), axes, num_seeds, own_task=own is not None)
        path = Path(out) if out is not None else Path("runs/sweep")
    elif isinstance(source, Path | str):
        if changes or settings is not None or task is not None or num_seeds != 1:
            raise InputError(f"settings, task and seeds must be set in {source}, not as arguments")
        plan = load_grid(source, overrides)
        path = Path(out) if out is not None else out_for(source)
    else:
        raise InputError(f"source must be a file or a mapping of lists, got {source!r}")
    if own is not None and engine is not None:
        raise InputError("engine must not be given with a Task object: pass the task to make_engine instead")
    engine, followers = engine or make_engine(task=own), checked_trackers(trackers)
    return _execute(run_missing, plan, path, engine, resume=resume, trackers=followers)


def tune(
    file: Path | str | None = None,
    *,
    only: Sequence[str] = (),
    out: Path | str | None = None,
    resume: bool = True,
    engine: Engine | None = None,
    trackers: Sequence[Tracker | str] = (),
) -> TunedStudy:
    """Tune each entry of a file on a small grid, run its best settings on all seeds, and return the study.

    Args:
        file: The file of a tuned comparison; by default, that of docs/explanation/comparison.md.
        only: Names of entries or groups to run; by default, all.
        out: Output folder, with one subfolder per run; by default, a subfolder of runs/ named after the file.
        resume: Whether to resume unfinished runs in the folder; otherwise, they are an error.
        engine: Executes the runs; by default, one process per core.
        trackers: Trackers by name, `module:Class` or as objects; each process gets a copy.

    Returns:
        A study labeled by entry, group and β. Runs that failed are listed in its `failures`.

    Raises:
        InputError: An argument or the file is invalid, or the folder holds something else.
        RunStoppedError: All runs failed.
    """
    file = STRATEGIES if file is None else file
    path, tuning = Path(out) if out is not None else out_for(file), Tuning.load(file)
    how: dict[str, Any] = {"only": only, "resume": resume, "trackers": checked_trackers(trackers)}
    return _execute(tune_entries, tuning, path, engine or make_engine(), on_error="stop", **how)


def reproduce(
    *items: str,
    quick: bool = False,
    num_seeds: int | None = None,
    eval_jitter: float = 0.0,
    num_lanes: int | None = None,
    out: Path | str | None = None,
    data_dir: Path | str | None = None,
) -> Reproduction:
    """Reproduce figures and tables of the paper and check its claims.

    Figures, tables and claims are written to `out`. Finished runs in `out` are not executed again.

    Args:
        *items: Names such as "table2" or "fig5"; by default, all but those that run only on request.
        quick: Whether to take a quick look in minutes: MNIST only and short runs. This is not a valid reproduction.
        num_seeds: Number of seeds; by default 5, or 2 for a quick look.
        eval_jitter: Largest share of the interval by which evaluations are moved at random, 0 to 1.
        num_lanes: Number of runs that each GPU trains at a time; see `compare`.
        out: Output folder; by default, runs/paper or runs/paper-quick.
        data_dir: Folder for data sets; by default, LESSON_DATA_DIR or a folder in the user's cache.

    Returns:
        The `study` of all runs, the `claims` with their verdicts, and the `paths` of what was written.

    Raises:
        InputError: An argument is invalid, or the folder holds something else.
        RunStoppedError: Runs failed.
    """
    chosen, scale = select_items(items), make_scale(quick, num_seeds, eval_jitter)
    path = Path(out) if out is not None else Path("runs") / ("paper-quick" if quick else "paper")
    wanted = plan_reproduction(chosen, scale, path)
    engine = make_engine(num_lanes=num_lanes, data_dir=data_dir)
    study = _execute(run_missing, wanted, path, engine, on_error="stop")
    if study.failures:
        failed = f"{len(study.failures)} runs failed, first {study.first_failure()}"
        raise RunStoppedError(f"{failed}; repeat it to retry them")
    with Console(stderr=True).status("") as status:
        return write_reproduction(chosen, scale, study, path, status.update)


def plan(
    fleet: Fleet | None = None,
    deadline_s: float | Literal["auto"] | None = None,
    *,
    num_rounds: int = 12,
    compressors: bool = False,
    settings: Settings | None = None,
    **changes: Any,
) -> Plan:
    """Return what a deadline does to a fleet, without training: tiers, round lengths and the effect of other deadlines.

    Args:
        fleet: Clients with their latencies, for example from `read_fleet`; by default, drawn from the settings.
        deadline_s: Deadline in seconds, > 0; may be inf. "auto" proposes one that about a quarter of the clients meet.
            By default, the one in the settings.
        num_rounds: Number of rounds to schedule.
        compressors: Whether `uploads` also lists the tiers that result from each built-in compressor.
        settings: Settings of the fleet; by default, `Settings()`. They may make times vary; disconnections are
            ignored.
        **changes: Settings by name, such as `num_clients=200`, which override those in `settings`.

    Raises:
        InputError: An argument or a setting is invalid, or no client can be reached.
    """
    base = _settings(settings, changes)
    if fleet is not None and not isinstance(fleet, Fleet):
        raise InputError(f"fleet must be a Fleet, such as lesson.read_fleet('lab.csv'), got {fleet!r}")
    fleet = fleet if fleet is not None else draw_fleet(with_upload_bits(base))
    if deadline_s == "auto":
        base = base.with_changes(deadline_s=propose_deadline_s(fleet))
    elif deadline_s is not None:
        base = base.with_changes(deadline_s=deadline_s)
    return make_plan(
        fleet,
        base.strategy.deadline_s,
        num_rounds=num_rounds,
        settings=base,
        seed=base.run.seed,
        upload_bits=compressed_bits(base, fleet.model_bits) if compressors else None,
    )


S = TypeVar("S", bound=Study)


def _execute(call: Callable[..., S], what: Any, out: Path, engine: Engine, **how: Any) -> S:
    """Call `run_missing` or `tune` and show its progress; raise RunStoppedError if all runs failed."""
    script = Path(sys.argv[0])
    is_command = script.name == "lesson" or script.parts[-3:] == ("lesson", "cli", "__main__.py")
    command = ["lesson", *sys.argv[1:]] if is_command else ["python", script.name]
    with _continued_by_repeating(), StudyProgress() as progress:
        study = call(what, out, engine, report=progress.report, command=shlex.join(command), **how)
    if study.failures and not study.runs:
        raise RunStoppedError(f"all {len(study.failures)} runs failed; the first is {study.first_failure()}")
    return study


@contextlib.contextmanager
def _continued_by_repeating() -> Iterator[None]:
    """Add to a KeyboardInterrupt how to resume the runs."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; repeat the command to continue") from None


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)


def _comparison_name(settings: Settings) -> str:
    """Return the default folder of a comparison, named after the settings that differ from the preset."""
    return f"compare-{run_name(settings).removeprefix(f'{settings.strategy.name}-')}"


def out_for(file: Path | str) -> Path:
    """Return the default output folder of a sweep: the folder of a study.toml, otherwise one in runs/."""
    return Path(file).parent if Path(file).name == MARKER else Path("runs") / Path(file).stem


def _settings(settings: Settings | None, changes: Mapping[str, Any]) -> Settings:
    if settings is not None and not isinstance(settings, Settings):
        raise InputError(f"settings must be a lesson.Settings object, got {settings!r}")
    if "seeds" in changes:
        raise InputError(
            f"seeds is not an argument, got {changes['seeds']!r}; use num_seeds, and seed for the first one"
        )
    return Settings(**changes) if settings is None else settings.with_changes(**changes)


def _with_task(settings: Settings, task: TaskSource, out: Path | str | None) -> tuple[Settings, Task | None]:
    """Return the settings of runs of a task, and the task if processes cannot load it by its name."""
    if task is None:
        return settings, None
    name = _name_of(task)
    if settings.is_given("data.dataset") and settings.data.dataset != name:
        raise ArgumentError("task", f"must not be given with a dataset, got '{name}' and '{settings.data.dataset}'")
    if isinstance(task, str) or ":" in name:
        return settings.with_changes(dataset=name), None
    if out is None:
        raise InputError("out must be given with a Task object: runs of other tasks could have the same default folder")
    made = task_of(settings, given=task)
    return settings.with_changes(dataset=made.name), made


def _name_of(task: TaskSource) -> str:
    """Return module:function for a task that other processes can import, otherwise a name for messages."""
    if isinstance(task, str):
        if ":" not in task:
            raise ArgumentError("task", f"must be module:function, got '{task}'; name a built-in task with dataset")
        return task
    if isinstance(task, Task):
        return task.name
    module, name = getattr(task, "__module__", ""), getattr(task, "__qualname__", "")
    importable = module != "__main__" and getattr(sys.modules.get(module), name, None) is task
    return f"{module}:{name}" if task is not None and importable else name or type(task).__name__

"""Executes a run in its folder, with evaluations and checkpoints."""

import contextlib
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lesson.clock.records import RoundRecord
from lesson.core.errors import DivergedError, LackOfMemoryError, printable
from lesson.core.state import state_of
from lesson.fleet.fleet import Fleet
from lesson.learn.device import lacks_memory
from lesson.learn.evaluation import Evaluator
from lesson.learn.metric import Metric
from lesson.learn.pipeline import Pipeline, nothing_due
from lesson.learn.process import configured_process
from lesson.learn.scores import Score
from lesson.learn.task import Task
from lesson.runs.evaluation_times import EvaluationGrid
from lesson.runs.folder import RunFolder
from lesson.runs.interrupts import Interrupt, StoppedBySignal
from lesson.runs.metrics import metrics_line, result_fields
from lesson.runs.resolve import Resolved, resolve
from lesson.runs.summary import WALL, accuracy_by_tier, clients_of, read_metrics, summarize
from lesson.runs.trackers import Tracker, Tracking
from lesson.settings.settings import Settings
from lesson.strategies import option_values


class ExecutableRun(Protocol):
    """A run that trains models: `learn.build.TrainingRun`, or the run of an app on Flower, which has no task."""

    @property
    def pipeline(self) -> Pipeline: ...

    @property
    def evaluator(self) -> Evaluator | None:
        """Evaluates its models; None if `after_round` does so."""
        ...

    @property
    def on_wall_clock(self) -> bool:
        """Whether its times are measured on real clients, rather than simulated."""
        ...

    @property
    def fleet(self) -> Fleet:
        """The clients that have taken part, with estimated times or, on the wall clock, measured ones."""
        ...

    @property
    def metric(self) -> Metric:
        """The metric by which models are compared."""
        ...

    @property
    def after_round(self) -> Callable[[RoundRecord], Mapping[str, Any]]:
        """Called when the results of a round are known; returns additional fields for its line of metrics."""
        ...

    def final_score(self) -> Score:
        """Return the score of the newest model."""
        ...

    def parameters(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the values of the newest model by name."""
        ...


Progress = Callable[[dict[str, Any]], None]
Start = Callable[[Settings | None], tuple[Settings, ExecutableRun]]
"""Returns the resolved settings and the run, given the settings of the run in the folder, or None if there is none."""
MAX_SHARE_OF_CHECKPOINTS, MAX_STRETCH = 0.05, 10
"""If checkpoints took more than this share of the time, they are written less often, but at most so many times."""
MAX_NAMED = 1000
"""Largest fleet for which the metrics name the clients of all aggregated updates."""


def execute(
    settings: Settings,
    path: Path | str,
    *,
    task: Task | None = None,
    data_dir: Path | str | None = None,
    num_threads: int | None = None,
    tell: Callable[[str], None] = lambda _: None,
    make: Callable[[Resolved, int | None], ExecutableRun] = Resolved.build,
    **options: Any,
) -> dict[str, Any]:
    """Resolve the settings, build the run with `make` and call `execute_in`, with the same options.

    `task` replaces the one that the settings name. `tell` is called with notes on the settings, and on a run that is
    resumed. A finished run is not resolved, so that it needs no data.
    """

    def start(begun: Settings | None) -> tuple[Settings, ExecutableRun]:
        if begun is not None:
            tell(f"resuming the unfinished run in {path}")
        resolved = resolve(settings, task, data_dir, begun)
        for note in resolved.notes:
            tell(note)
        return resolved.settings, make(resolved, num_threads)

    with configured_process():
        return execute_in(RunFolder(path), settings, start, **options)


@contextlib.contextmanager
def _as_errors_of_runs() -> Iterator[None]:
    """Pass on a signal that stopped a run, and report a lack of memory in one line."""
    try:
        yield
    except StoppedBySignal as stopped:
        stopped.pass_on()
        raise KeyboardInterrupt from None
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
        why = f" ({printable(' '.join(str(error).split()))})" if str(error) else ""
        remedy = "use fewer clients or a smaller batch_size"
        raise LackOfMemoryError(
            f"not enough memory for this run{why}; {remedy}: with the same settings, resuming it would fail again"
        ) from None


@_as_errors_of_runs()
def execute_in(
    folder: RunFolder,
    settings: Settings,
    start: Start,
    *,
    resume: bool = False,
    may_extend: bool = False,
    may_change: Collection[str] = (),
    after_load: Callable[[], None] = lambda: None,
    progress: Progress | None = None,
    trackers: Sequence[Tracker] = (),
) -> dict[str, Any]:
    """Execute a run in a folder and return its summary; a finished run is not executed again.

    With `may_extend`, a finished run keeps its last checkpoint, and if `resume` is set, a run may be continued with
    more rounds or a larger time budget than before, and with other values of the settings in `may_change`. `after_load`
    is called when the state of a resumed run has been restored, or when a new run begins.
    """
    begun = folder.check(settings, resume, may_extend, may_change)
    if begun is not None and not begun.is_shorter and (summary := folder.finished()) is not None:
        if not may_extend:
            folder.delete_checkpoints()  # a kill may have come before this was done
        print(f"note: reusing the finished run in {folder.path}", file=sys.stderr)
        return summary
    begin = time.perf_counter()
    settings, run = start(None if begun is None else begun.settings)
    pipeline, evaluator = run.pipeline, run.evaluator
    try:
        folder.begin(settings, option_values(pipeline.loop.strategy), may_extend, may_change)
        with folder.owned(), folder.withdrawn_if_rejected():
            folder.load(pipeline)
            after_load()
            earlier = read_metrics(folder.metrics) if trackers else []
            with Tracking(trackers, settings, folder.path, earlier) as tracking:
                _run_rounds(settings, run, folder, tracking, progress)
                score = run.final_score()
                wall_s = round(time.perf_counter() - begin, 3)
                summary = summarize(
                    settings,
                    folder.metrics,
                    run.metric,
                    score.values,
                    score.loss,
                    num_classes=evaluator.num_classes if evaluator is not None and evaluator.is_cross_entropy else None,
                    stop_reason=pipeline.loop.stop_reason,
                )
                summary["notes"] = [*pipeline.notes, *summary["notes"]]
                summary |= {"wall_s": wall_s, "wall_trainer": ", ".join(pipeline.executor.source.trainers)}
                summary |= {"clock": WALL} if run.on_wall_clock else {}
                clients = clients_of(run.fleet, evaluator, pipeline.lane.model)
                summary |= accuracy_by_tier(clients, settings.strategy.deadline_s)
                folder.finish(pipeline, run.parameters(), clients, summary, keep_checkpoint=may_extend)
                tracking.finish(summary)
        return summary
    except DivergedError as error:
        error.metric = run.metric.outline  # the folder has no summary that says what was measured
        raise
    finally:
        pipeline.close()


def _run_rounds(
    settings: Settings, run: ExecutableRun, folder: RunFolder, tracking: Tracking, progress: Progress | None
) -> None:
    """Execute rounds up to the limits, with a checkpoint every `checkpoint_every_s` and when the run is interrupted."""
    limits, pipeline, loop = settings.run, run.pipeline, run.pipeline.loop
    due, saved = nothing_due if run.evaluator is None else EvaluationGrid(limits).due, time.perf_counter()
    interval_s = limits.checkpoint_every_s
    lines = _Lines(run, folder, tracking, progress)
    with Interrupt() as interrupt, lines.finished_if_stopped():
        while not loop.stop_reason and (limits.rounds is None or loop.round < limits.rounds):
            record = pipeline.step(limits.time_budget_s, due)
            if record is None:
                break
            if record.round == 1:
                lines.check_state()
            lines.write()
            wanted = interrupt.asked or time.perf_counter() - saved >= interval_s
            if wanted and pipeline.end_chunk():
                begun = time.perf_counter()
                with interrupt.held():
                    lines.finish()
                    folder.save(pipeline)
                saved = time.perf_counter()
                usual_s, affordable_s = limits.checkpoint_every_s, (saved - begun) / MAX_SHARE_OF_CHECKPOINTS
                interval_s = min(max(usual_s, affordable_s), MAX_STRETCH * usual_s)
                if interrupt.asked:
                    interrupt.stop()
        lines.finish()
        if interrupt.asked and folder.metrics.exists():
            with interrupt.held():
                folder.save(pipeline)


class _Lines:
    """Writes the lines of rounds whose results are known, in order.

    The lines for `progress` also name the metric, unless it is accuracy with the default targets.
    """

    def __init__(self, run: ExecutableRun, folder: RunFolder, tracking: Tracking, progress: Progress | None) -> None:
        self._run, self._folder, self._tracking, self._progress = run, folder, tracking, progress
        self._is_named = len(run.pipeline.loop.fleet) <= MAX_NAMED
        self._has_classes = run.evaluator is not None and run.evaluator.num_classes is not None

    def finish(self) -> None:
        """Wait for the results of all rounds and write their lines."""
        self._run.pipeline.drain()
        self.write()

    def check_state(self) -> None:
        """Raise if the strategy's state cannot be saved: now, not at the first checkpoint, and without any line."""
        try:
            state_of(self._run.pipeline.loop.strategy)
        except Exception:
            self._run.pipeline.discard()
            raise

    @contextlib.contextmanager
    def finished_if_stopped(self) -> Iterator[None]:
        """After an error, write the lines of earlier rounds; if one of these failed, raise its error instead."""
        try:
            yield
        except Exception:
            self.finish()
            raise

    def write(self) -> None:
        """Write the lines of the rounds whose results are known."""
        run, lines = self._run, list[dict[str, Any]]()
        try:
            try:
                for record, result in run.pipeline.results():
                    line, scores = metrics_line(record, self._is_named), result_fields(result, self._has_classes)
                    lines.append({**line, **run.after_round(record), **scores})
            finally:  # after an error, the lines of earlier rounds
                self._pass_on(lines)
        except BaseException:
            run.pipeline.discard()  # no line may follow a missing one
            raise

    def _pass_on(self, lines: Sequence[dict[str, Any]]) -> None:
        self._folder.append(lines)
        for line in lines:
            self._tracking.line(line)
            if self._progress is not None:
                self._progress(line | self._run.metric.fields)

"""Executes a run in its folder, with evaluations and checkpoints."""

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lesson.core.errors import DivergedError, LackOfMemoryError, printable
from lesson.core.state import state_of
from lesson.learn.device import lacks_memory
from lesson.learn.process import configured_process
from lesson.learn.scores import ClientScores, Pending, PendingScore
from lesson.learn.task import Task
from lesson.runs.evaluation_times import EvaluationGrid
from lesson.runs.executable import ExecutableRun
from lesson.runs.folder import RunFolder
from lesson.runs.interrupts import Interrupt, StoppedBySignal
from lesson.runs.metrics import client_fields, metrics_line
from lesson.runs.resolve import Resolved, resolve
from lesson.runs.summary import WALL, read_metrics, summarize
from lesson.runs.trackers import Tracker, Tracking
from lesson.settings.settings import Settings
from lesson.strategies import option_values

Progress = Callable[[dict[str, Any]], None]
Start = Callable[[Settings | None], tuple[Settings, ExecutableRun]]
"""Returns the resolved settings and the run, given the settings of the run in the folder, if there is one."""
MAX_WINDOW_ROUNDS = 256
"""Largest number of rounds in a window."""
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

    `task` replaces the one that the settings name. `tell` is called with notes on the settings. A finished run is not
    resolved, so that it needs no data.
    """

    def start(begun: Settings | None) -> tuple[Settings, ExecutableRun]:
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
    progress: Progress | None = None,
    trackers: Sequence[Tracker] = (),
) -> dict[str, Any]:
    """Execute a run in a folder and return its summary; a finished run is not executed again.

    With `may_extend`, a finished run keeps its last checkpoint, and if `resume` is set, a run may be continued with
    more rounds or a larger time budget than before.
    """
    begun = folder.check(settings, resume, may_extend)
    if begun is not None and not begun.is_shorter and (summary := folder.finished()) is not None:
        if not may_extend:
            folder.delete_checkpoints()  # a kill may have come before this was done
        print(f"note: reusing the finished run in {folder.path}", file=sys.stderr)
        return summary
    begin = time.perf_counter()
    settings, run = start(None if begun is None else begun.settings)
    try:
        folder.begin(settings, option_values(run.loop.strategy), may_extend)
        with folder.owned(), folder.withdrawn_if_rejected():
            folder.load(run)
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
                    num_classes=run.num_classes if run.is_cross_entropy else None,
                    stop_reason=run.loop.stop_reason,
                )
                summary["notes"] = [*run.server.notes, *summary["notes"]]
                summary |= {"wall_s": wall_s, "wall_trainer": ", ".join(run.server.source.trainers)}
                summary |= {"clock": WALL} if run.on_wall_clock else {}
                folder.finish(run, summary, keep_checkpoint=may_extend)
                tracking.finish(summary)
        return summary
    except DivergedError as error:
        error.metric = run.metric.outline  # the folder has no summary that says what was measured
        raise
    finally:
        run.close()


def _run_rounds(
    settings: Settings, run: ExecutableRun, folder: RunFolder, tracking: Tracking, progress: Progress | None
) -> None:
    """Execute rounds up to the limits, with a checkpoint every `checkpoint_every_s` and when the run is interrupted."""
    limits, loop, saved = settings.run, run.loop, time.perf_counter()
    grid = EvaluationGrid(limits)
    lines = _Lines(folder, tracking.line, progress, run)
    with Interrupt() as interrupt, lines.written_if_stopped():
        while not loop.stop_reason and (limits.rounds is None or loop.round < limits.rounds):
            before_s = loop.now_s  # also correct after a resume
            record = loop.step(limits.time_budget_s)
            if record is None:
                break
            if record.round == 1:
                state_of(loop.strategy)  # a state that cannot be saved is an error now, not at the first checkpoint
            if record.round % MAX_WINDOW_ROUNDS == 0:
                run.server.flush()  # rounds without aggregations never fill a window, and their lines would wait
            line = {**metrics_line(record, named=len(loop.fleet) <= MAX_NAMED), **run.after_round(record)}
            due = not run.evaluates_itself and grid.is_due(before_s, record)
            all_due = not run.evaluates_itself and grid.are_clients_due(before_s, record)
            lines.add(line, run.begin_score() if due else None, run.begin_client_scores() if all_due else None)
            wanted = interrupt.asked or time.perf_counter() - saved >= limits.checkpoint_every_s
            if wanted and run.server.end_window():
                with interrupt.held():
                    lines.write_all()
                    folder.save(run)
                saved = time.perf_counter()
                if interrupt.asked:
                    interrupt.stop()
        lines.write_all()
        if interrupt.asked and folder.metrics.exists():
            with interrupt.held():
                folder.save(run)


class _Lines:
    """Writes lines of metrics to a folder, in order, as soon as their rounds are final and their scores are known.

    The lines for `progress` also name the metric, unless it is accuracy with the default targets.
    """

    def __init__(
        self, folder: RunFolder, track: Callable[[dict[str, Any]], None], progress: Progress | None, run: ExecutableRun
    ) -> None:
        self._folder, self._track, self._progress, self._run = folder, track, progress, run
        self._held: deque[_Line] = deque()

    def add(
        self, line: dict[str, Any], score: PendingScore | None = None, clients: Pending[ClientScores] | None = None
    ) -> None:
        """Add a line, and the pending evaluations that it will show."""
        self._held.append(_Line(line, score, clients))
        first_open = self._run.server.first_open_round
        while self._held and self._held[0].round < first_open and self._held[0].is_known:
            self._write()

    def write_all(self) -> None:
        """Write all lines, after executing what is queued."""
        self._run.server.synchronize()
        while self._held:
            self._write()

    @contextlib.contextmanager
    def written_if_stopped(self) -> Iterator[None]:
        """After an error in the body of the context, write the lines of all rounds before the one that failed.

        If a queued round fails, too, its error is the first one and is raised instead.
        """
        try:
            yield
        except Exception as error:
            first = error
            try:
                self._run.server.synchronize()
            except Exception as earlier:
                first = earlier
            try:
                while self._held and self._held[0].round < self._run.server.first_open_round:
                    self._write()
            except Exception as earlier:
                first = earlier
            if first is not error:
                raise first from first.__cause__
            raise

    def _write(self) -> None:
        line = self._held.popleft()
        try:
            self._write_line(line.complete(has_classes=self._run.num_classes is not None))
        except BaseException:
            self._held.clear()  # nothing may follow a line that is missing
            raise

    def _write_line(self, line: dict[str, Any]) -> None:
        self._folder.append(line)
        self._track(line)
        if self._progress is not None:
            self._progress(line | self._run.metric.fields)


@dataclass(frozen=True, eq=False)
class _Line:
    """A line of metrics, and the pending evaluations that it will show."""

    fields: dict[str, Any]
    score: PendingScore | None
    clients: Pending[ClientScores] | None

    @property
    def round(self) -> int:
        return int(self.fields["round"])

    @property
    def is_known(self) -> bool:
        """Whether the evaluations have ended."""
        return all(pending is None or pending.ready() for pending in (self.score, self.clients))

    def complete(self, has_classes: bool) -> dict[str, Any]:
        """Return the line with its evaluations; wait for them."""
        line = self.fields
        if self.clients is not None:
            line |= client_fields(self.clients.result(), has_classes)
        if self.score is not None:
            score = self.score.result()
            line |= {**score.values, "loss": score.loss}
        return line

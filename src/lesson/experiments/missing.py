"""Executes the missing runs of a study. All functions and commands that execute several runs call `run_missing`."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from lesson.core.errors import DivergedError, InputError, RemoteError, RunStoppedError, unknown
from lesson.experiments.archive import write_archive
from lesson.experiments.engines import Engine
from lesson.experiments.engines.trial import Line
from lesson.experiments.folder import Made, Marker, StudyFolder, StudyPlan, commit_of_code
from lesson.experiments.loading import study_of
from lesson.experiments.run import Run
from lesson.experiments.study import Study
from lesson.learn.metric import Metric
from lesson.runs.folder import RunFolder
from lesson.runs.trackers import Tracker
from lesson.settings.settings import Settings

Report = Callable[[str, dict[str, Any]], None]
"""Called with the name of a run and each of its events: first {"limits": its [run] settings}, then those of `Engine`.
The only event of a run that had already finished is {"done": True}. It is also called with the path of the study's
folder and {"study": a note about reused or resumed runs}."""


def run_missing(
    plan: StudyPlan,
    out: Path | str,
    engine: Engine,
    *,
    on_error: Literal["continue", "stop"] = "continue",
    resume: bool = True,
    report: Report = lambda *_: None,
    trackers: Sequence[Tracker] = (),
    command: str = "",
) -> Study:
    """Execute the runs of a plan that are missing in `out`, each in a subfolder, and return the study.

    Finished runs are reused, and interrupted ones are resumed (without `resume`, they are an error). Runs that fail
    are listed in the study's `failures`, and the next call retries them. With `on_error="stop"`, an InputError in
    one run stops all runs and is raised. `command` is recorded in study.toml.
    """
    if on_error not in ("continue", "stop"):
        raise unknown("value of on_error", str(on_error), ["continue", "stop"])
    folder = StudyFolder(out)
    folder.check(plan.kind)
    with folder.owned(plan.kind) as marker:
        done = folder.runs()
        check_runs(plan.runs, done, folder.path, resume)
        progress = _Progress(folder, plan, marker, command, on_error, report)
        progress.write()
        left = {folder.path / name: settings for name, settings in plan.runs.items() if name not in done}
        left = dict(sorted(left.items(), key=lambda item: item[1].run.seed))
        reused = [folder.path / name for name in plan.runs if name in done]
        for path in reused:
            RunFolder(path).delete_checkpoints()  # a process may have been killed before it deleted them
            report(path.name, {"done": True})
        begun = sum(RunFolder(path).is_unfinished for path in left)
        for count, what in ((len(reused), "reusing {} finished run{}"), (begun, "resuming {} unfinished run{}")):
            if count:
                report(str(folder.path), {"study": what.format(count, "" if count == 1 else "s")})
        for path, settings in left.items():
            report(path.name, {"limits": settings.run})
        try:
            if left:
                engine.run(left, progress.handle, trackers)
        finally:
            done |= _ended(left, progress.errors if plan.archived else {})
            if plan.archived and any(run.archived is None for run in done.values()):
                write_archive(folder.archive, done.values())
            progress.check_results(done)
            marker = progress.write(done)
    return study_of(folder, marker, done)


class _Progress:
    """Handles the events of all runs and keeps study.toml up to date, so that a kill loses no provenance."""

    def __init__(
        self, folder: StudyFolder, plan: StudyPlan, marker: Marker, command: str, on_error: str, report: Report
    ) -> None:
        self.errors: dict[str, Line] = {}
        self._folder, self._plan, self._marker = folder, plan, marker
        self._command, self._commit, self._begin = command, commit_of_code(), time.perf_counter()
        self._stops, self._report = on_error == "stop", report
        self._new: set[str] = set()

    def handle(self, path: Path, line: Line) -> None:
        """Handle an event of a run; raise InputError if it is invalid input that stops all runs."""
        if line.get("kind") == InputError.__name__ and self._stops:
            where = line.get("traceback")
            raise InputError(f"{path.name}: {line['error']}") from (RemoteError(where) if where else None)
        if "error" in line:
            self.errors[path.name] = line
        if "done" in line:
            self._new.add(path.name)
            self.write()
        self._report(path.name, line)

    def check_results(self, done: Mapping[str, Run]) -> None:
        """Record an error for each run that the engine reported as done but whose results are not in the folder."""
        for name in self._new - done.keys():
            lost = f"its results are not in {self._folder.path / name}: all nodes must share the same storage"
            self.errors[name] = {"error": lost, "kind": RunStoppedError.__name__}
        self._new &= done.keys()

    def write(self, done: Mapping[str, Run] | None = None) -> Marker:
        """Write study.toml with all failures of runs that have not finished since; return its table [study]."""
        failures = self._marker.failures | {name: str(line["error"]) for name, line in self.errors.items()}
        failures = {name: reason for name, reason in failures.items() if name not in self._new | (done or {}).keys()}
        num_new = len(self._new | {name for name in self.errors if name in (done or {})})
        wall_s = round(time.perf_counter() - self._begin, 1)
        made = [Made(command=self._command, commit=self._commit, runs=num_new, wall_s=wall_s)] if num_new else []
        changes = {"failures": failures, "provenance": self._marker.provenance + made}
        return self._folder.write(self._plan, self._marker.model_copy(update=changes))


def _ended(left: Mapping[Path, Settings], errors: Mapping[str, Line]) -> dict[str, Run]:
    """Return the runs that have finished, and those that diverged according to `errors`."""
    ended = {}
    for path in left:
        if RunFolder(path).summary.exists():
            ended[path.name] = Run.load(path)
        elif path.name in errors and errors[path.name]["kind"] == DivergedError.__name__:
            error = errors[path.name]
            ended[path.name] = Run.load_diverged(path, error["error"], Metric.of(error))
    return ended


def check_runs(wanted: Mapping[str, Settings], done: Mapping[str, Run], out: Path, resume: bool) -> None:
    """Raise InputError if a run cannot start, or has finished with other settings or inputs.

    Inputs of runs of which only the archived line is left are not checked, because archives do not record them.
    """
    for name, settings in wanted.items():
        if name not in done:
            RunFolder(out / name).check(settings, resume)
        elif different := settings.differences(done[name].settings):
            raise InputError(f"{out} holds {name} with other settings ({different[0]}); choose another output folder")
        elif changed := RunFolder(out / name).changed_input(settings):
            remedy = "choose another output folder, or remove this one"
            raise InputError(f"{out} holds {name} with another version of {changed}; {remedy}")

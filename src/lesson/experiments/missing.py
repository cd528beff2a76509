"""Executes the runs of a design that are missing in a folder. Whatever executes several runs calls `run_missing`."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from lesson.core.errors import DivergedError, InputError, RemoteError, RunStoppedError, unknown
from lesson.experiments.design import Design, Named
from lesson.experiments.engines import Engine
from lesson.experiments.engines.trial import Line
from lesson.experiments.folder import Made, Marker, StudyFolder, commit_of_code
from lesson.experiments.run import Run
from lesson.experiments.study import Study
from lesson.learn.metric import Metric
from lesson.runs.folder import RunFolder
from lesson.runs.trackers import Tracker

Report = Callable[[str, dict[str, Any]], None]
"""Called with the name of a run and each of its events: first {"limits": its [run] settings}, then those of `Engine`.
The only event of a run that had already finished is {"done": True}. If there are such runs, it is also called with the
path of the study's folder instead of a run's name and with {"reused": number of these runs}."""


def run_missing(
    design: Design,
    out: Path | str,
    engine: Engine,
    *,
    on_error: Literal["continue", "stop"] = "continue",
    resume: bool = True,
    report: Report | None = None,
    trackers: Sequence[Tracker] = (),
    command: str = "",
) -> Study:
    """Execute the runs of a design that are missing in `out`, each in a subfolder, and return all that are done.

    Finished runs are skipped, and interrupted ones are resumed (without `resume`, they are an error). Runs that fail
    are listed in the study's `failures`, and the next call tries them again. With `on_error="stop"`, an InputError in
    one run stops all runs and is raised. `command` is recorded in study.toml.
    """
    if on_error not in ("continue", "stop"):
        raise unknown("value of on_error", str(on_error), ["continue", "stop"])
    folder = StudyFolder(out)
    engine.check()
    folder.check(design)
    with folder.owned(design) as marker:
        done = folder.runs()
        check_runs(design.runs(done), done, folder.path, resume)
        progress = _Progress(folder, design, marker, command, on_error, report)
        progress.write()
        reused = design.runs(done).keys() & done.keys()
        for name in reused:
            RunFolder(folder.path / name).delete_checkpoints()  # a process may have been killed before it did
            progress.hear(folder.path / name, {"done": True})
        if reused and report is not None:
            report(str(folder.path), {"reused": len(reused)})
        try:
            while left := _left(design, done, progress.errors):
                plan = {folder.path / name: settings for name, settings in left.items()}
                for path, settings in plan.items():
                    progress.hear(path, {"limits": settings.run})
                try:
                    engine.run(plan, progress.hear, trackers)
                finally:
                    done |= _ended(left, folder.path, progress.errors if design.archived else {})
                progress.check_found(done)
                if any(name not in done and name not in progress.errors for name in left):
                    break  # the engine has run out of time
        finally:
            if design.archived and any(run.archived is None for run in done.values()):
                folder.keep(done)
            failures = progress.write(done)
    return design.study(done, failures)


class _Progress:
    """Hears the events of all runs, and keeps study.toml up to date, so that a kill loses no provenance."""

    def __init__(
        self, folder: StudyFolder, design: Design, marker: Marker, command: str, on_error: str, report: Report | None
    ) -> None:
        self.errors: dict[str, Line] = {}
        self._folder, self._design, self._marker = folder, design, marker
        self._command, self._commit, self._begin = command, commit_of_code(), time.perf_counter()
        self._stops, self._report = on_error == "stop", report
        self._new: set[str] = set()

    def hear(self, path: Path, line: Line) -> None:
        """Handle an event of a run; raise InputError if it is invalid input that stops all runs."""
        if line.get("kind") == InputError.__name__ and self._stops:
            where = line.get("traceback")
            raise InputError(f"{path.name}: {line['error']}") from (RemoteError(where) if where else None)
        if "error" in line:
            self.errors[path.name] = line
        if "done" in line and "time_s" in line:
            self._new.add(path.name)
            self.write()
        if self._report is not None:
            self._report(path.name, line)

    def check_found(self, done: Mapping[str, Run]) -> None:
        """Turn runs that an engine reported as done, but whose results are not in the folder, into errors."""
        for name in self._new - done.keys():
            lost = f"its results are not in {self._folder.path / name}: all nodes must share the same storage"
            self.errors[name] = {"error": lost, "kind": RunStoppedError.__name__}
        self._new &= done.keys()

    def write(self, done: Mapping[str, Run] | None = None) -> dict[str, str]:
        """Write study.toml, and return the failures: those of this call, and earlier ones of runs it did not try."""
        failures = self._marker.failures | {name: str(line["error"]) for name, line in self.errors.items()}
        failures = {name: reason for name, reason in failures.items() if name not in self._new | (done or {}).keys()}
        num_new = len(self._new | {name for name in self.errors if name in (done or {})})
        wall_s = round(time.perf_counter() - self._begin, 1)
        made = [Made(command=self._command, commit=self._commit, runs=num_new, wall_s=wall_s)] if num_new else []
        changes = {"failures": failures, "provenance": self._marker.provenance + made}
        self._folder.write(self._design, self._marker.model_copy(update=changes))
        return failures


def _left(design: Design, done: Mapping[str, Run], errors: Mapping[str, Line]) -> Named:
    """Return the runs that have neither ended nor failed, in the order of their seeds."""
    left = {name: one for name, one in design.runs(done).items() if name not in done and name not in errors}
    return dict(sorted(left.items(), key=lambda item: item[1].run.seed))


def _ended(left: Named, out: Path, errors: Mapping[str, Line]) -> dict[str, Run]:
    """Return the runs that have finished, and those that have diverged, according to `errors`."""
    ended = {}
    for name in left:
        if RunFolder(out / name).summary.exists():
            ended[name] = Run.load(out / name)
        elif name in errors and errors[name]["kind"] == DivergedError.__name__:
            ended[name] = Run.load_diverged(out / name, errors[name]["error"], Metric.of(errors[name]))
    return ended


def check_runs(wanted: Named, done: Mapping[str, Run], out: Path, resume: bool) -> None:
    """Raise InputError if one of the runs cannot start, or is done with other settings or inputs.

    Inputs of archived runs are not checked, because archives do not record them.
    """
    for name, settings in wanted.items():
        if name not in done:
            RunFolder(out / name).check(settings, resume)
        elif different := settings.differences(done[name].settings):
            raise InputError(f"{out} holds {name} with other settings ({different[0]}); choose another output folder")
        elif done[name].path is not None and (changed := RunFolder(out / name).changed_input(settings)):
            remedy = "choose another output folder, or remove this one"
            raise InputError(f"{out} holds {name} with another version of {changed}; {remedy}")

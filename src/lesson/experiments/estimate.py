"""Estimates the time and memory that the missing runs of a design need, by timing a few rounds of some of them."""

import contextlib
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lesson.core.cores import num_cores
from lesson.core.errors import RunStoppedError
from lesson.experiments.design import Design
from lesson.experiments.engines.local import most_at_once
from lesson.experiments.folder import StudyFolder
from lesson.experiments.missing import check_runs
from lesson.experiments.naming import series_name
from lesson.learn.process import configured_process
from lesson.runs.evaluation_times import NUM_EVALUATIONS
from lesson.runs.resolve import resolve
from lesson.settings.settings import Settings

MAX_TIMED, TIMED_S = 8, 0.7


@dataclass(frozen=True)
class Estimate:
    """The remaining work of a design."""

    num_runs: int
    num_done: int
    num_processes: int
    minutes: float
    """Real time until all remaining runs are done."""
    memory_gb: float
    """Memory of all processes together; NaN if the operating system does not report it."""

    @property
    def num_left(self) -> int:
        return self.num_runs - self.num_done


@configured_process()
def estimate(design: Design, out: Path | str, data_dir: Path | str | None = None, cpus_per_trial: int = 1) -> Estimate:
    """Estimate what the runs that are missing in `out` need, on the cores of this machine. Writes nothing.

    At most eight runs that differ in more than their seed are timed, for about a second each; the others are assumed to
    take as long as these do on average. Runs that a tuning phase will add are counted, too.
    """
    folder = StudyFolder(out)
    folder.check(design)
    done = folder.runs() if folder.path.exists() else {}
    wanted = design.runs(done) | design.later(done)
    check_runs(wanted, done, folder.path, resume=True)
    left = [settings for name, settings in wanted.items() if name not in done]
    at_once = most_at_once([settings.run for settings in left])
    num_processes = max(1, min(at_once, num_cores() // cpus_per_trial))
    different = list({(series_name(one), one.run.time_budget_s, one.run.rounds): one for one in left}.values())
    timed = different[:: math.ceil(len(different) / MAX_TIMED) or 1]
    seconds = []
    for settings in timed:
        with contextlib.suppress(RunStoppedError):  # it diverges or cannot go on, and will fail soon
            seconds.append(_seconds(settings, data_dir, num_cores() // num_processes))
    total_s = len(left) * float(np.mean(seconds)) if seconds else 0.0
    return Estimate(
        len(wanted), len(wanted) - len(left), num_processes, total_s / num_processes / 60, num_processes * _peak_gb()
    )


def _seconds(settings: Settings, data_dir: Path | str | None, num_threads: int) -> float:
    """Return the seconds that a run will take: its start, its rounds and its evaluations."""
    begin = time.perf_counter()
    run = resolve(settings, data_dir=data_dir).build(num_threads)
    try:
        pipeline, loop = run.pipeline, run.pipeline.loop
        pipeline.step(settings.run.time_budget_s)  # the first round includes setup that later rounds reuse
        pipeline.skip_results()
        ready = time.perf_counter()
        share, now_s = settings.run.share_done(loop.round, loop.now_s), ready
        while now_s - ready < TIMED_S and pipeline.step(settings.run.time_budget_s) is not None:
            now_s = time.perf_counter()
        pipeline.skip_results()
        now_s = time.perf_counter()
        gained = settings.run.share_done(loop.round, loop.now_s) - share
        rounds_s = (now_s - ready) * (1 - share) / gained if gained > 0 else 0.0
        run.final_score()
        evaluation_s = time.perf_counter() - now_s
    finally:
        run.pipeline.close()
    return ready - begin + rounds_s + _num_evaluations(settings) * evaluation_s


def _num_evaluations(settings: Settings) -> float:
    every_s, until_s = settings.run.eval_every_s, settings.run.time_budget_s
    return NUM_EVALUATIONS if every_s == "auto" or math.isinf(until_s) else until_s / float(every_s)


def _peak_gb() -> float:
    """Return the peak memory of this process so far, in gigabytes."""
    try:
        import resource
    except ImportError:  # Windows
        return math.nan
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9

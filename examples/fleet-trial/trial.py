"""Record a plain Flower app, replay the recording, switch to LESSON, and compare the gain with the predicted one.

    python examples/fleet-trial/trial.py --out runs/trial

starts six SuperNodes of unequal speed with TLS and registered keys on this machine and runs the app in this folder
twice for the same time: as it is, with FedAvg, and with LessonStrategy and the deadline that the replay proposes. Both
runs are recorded. The tutorial docs/tutorials/fleet.md shows the same steps one by one.
"""

import argparse
import math
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import lesson
from lesson.cli import main as lesson_command
from lesson.flight.advice import choose_deadline_s
from lesson.flight.check import MIN_ROUNDS
from lesson.flight.fit import fit
from lesson.flight.outcomes import Candidate, Spread, reality_of
from lesson.flight.recording import Recording, read_recording
from lesson.flight.replay import replay_fitted

APP = Path(__file__).parent
sys.path.append(str(APP.parent / "flower_deployment"))
from federation import Federation  # noqa: E402
from local_processes import FederationError  # noqa: E402

DATA = Path(lesson.__file__).parent / "learn" / "data" / "mnist"
DEVICES = {"phone-ana": 0.0, "phone-ben": 0.5, "tablet-lab": 1.0, "pi-kitchen": 8.0, "pi-garage": 9.0, "pi-roof": 18.0}
"""Names of the devices, with the usual seconds that each sleeps per local training."""
QUICK_DEVICES = {"phone-ana": 0.0, "tablet-lab": 2.0, "pi-roof": 6.0}
ROUNDS, QUICK_ROUNDS = 24, 4
FEDAVG = "FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)"
RECORD = [
    (
        "server_app.py",
        "from flwr.serverapp.strategy import FedAvg\n",
        "from flwr.serverapp.strategy import FedAvg\nfrom lesson.flower import RecordingGrid\n",
    ),
    (
        "server_app.py",
        "    nodes = int(",
        '    grid = RecordingGrid(grid, str(config["flight"]))\n    nodes = int(',
    ),
    (
        "client_app.py",
        "app = ClientApp()\n",
        "app = ClientApp(mods=[report_times])\n",
    ),
    (
        "client_app.py",
        "from flwr.clientapp import ClientApp\n",
        "from flwr.clientapp import ClientApp\nfrom lesson.flower import report_times\n",
    ),
]
"""Changes that record the app: file, text to replace, replacement."""
SWITCH = [
    (
        "server_app.py",
        "from flwr.serverapp.strategy import FedAvg\nfrom lesson.flower import RecordingGrid\n",
        "from lesson.flower import LessonStrategy, RecordingGrid\n",
    ),
    (
        "server_app.py",
        FEDAVG,
        'LessonStrategy(float(config["deadline"]), fraction_evaluate=0.0, min_available_nodes=nodes)',
    ),
]
"""Changes that switch the recorded app from FedAvg to LESSON."""


@dataclass(frozen=True)
class Gain:
    """Updates per hour of the run with LESSON relative to those of the run with FedAvg: predicted and measured."""

    predicted: Spread
    measured: float

    def __str__(self) -> str:
        interval = f"95 % interval {self.predicted.low:.2f}–{self.predicted.high:.2f}"
        inside = "inside" if self.measured in self.predicted else "outside"
        return (
            f"updates per hour: predicted {self.predicted.mean:.2f} times those of FedAvg ({interval}), "
            f"measured {self.measured:.2f} times, {inside} the interval"
        )


def copy_app(folder: Path, changes: Sequence[tuple[str, str, str]]) -> Path:
    """Copy the app to a folder, with changes to its files."""
    shutil.copytree(APP, folder, ignore=shutil.ignore_patterns("trial.py", "recordings", "__pycache__"))
    for name, before, after in changes:
        file = folder / "fleet_app" / name
        text = file.read_text()
        if text.count(before) != 1:
            raise ValueError(f"{name} must have these lines once: {before!r}")
        file.write_text(text.replace(before, after))
    return folder


def without_first_round(recording: Recording) -> Recording:
    """Return a recording from the second round on.

    In the first round, processes start, and LESSON measures the latencies in a round of FedAvg. All of its jobs end
    in it, with both strategies.
    """
    first_s, jobs = recording.rounds[0].end_s, recording.jobs
    later = jobs.asked_s >= first_s
    return replace(
        recording,
        jobs=jobs.where(later),
        rounds=recording.rounds[1:],
        begin_s=float(jobs.asked_s[later].min()),
    )


def compare(fedavg: Recording, switched: Recording, deadline_s: float) -> Gain:
    """Return the gain that a replay of the run with FedAvg predicts for a run as long as that with LESSON.

    The rate of FedAvg is known from its recording. Only the rate of LESSON is predicted, so the interval holds the
    gain of a single run of this length, given the recorded run of FedAvg.
    """
    before, after = (reality_of(fit(without_first_round(one))) for one in (fedavg, switched))
    span_s = after.values["round_s"] * after.num_rounds
    result = replay_fitted(fit(fedavg), [Candidate("lesson", deadline_s)], horizon_s=span_s)
    rate = before.values["updates_per_h"]
    return Gain(Spread.of(result.outcomes[0].values["updates_per_h"] / rate), after.values["updates_per_h"] / rate)


def run_app(federation: Federation, app: Path, flight: Path, rounds: int, deadline_s: float = 20.0) -> Recording:
    """Run an app on the federation and return its recording."""
    config = {
        "num-server-rounds": rounds,
        "min-nodes": len(federation.nodes),
        "data": str(DATA),
        "flight": str(flight),
        "deadline": deadline_s,
    }
    status = federation.follow(federation.begin(config, app))
    if status != "finished:completed":
        raise FederationError(f"the run did not complete: {status}; logs are in {federation.folder}")
    return read_recording(flight)


def run_trial(devices: dict[str, float], rounds: int, out: Path, tell: Callable[[str], None]) -> None:
    """Record, replay, switch, run again and compare; recordings and apps are written to `out`."""
    out = out.absolute()
    recorded, switched = copy_app(out / "recorded-app", RECORD), copy_app(out / "lesson-app", RECORD + SWITCH)
    nodes = [{"name": name, "slow-s": slow_s, "data": str(DATA)} for name, slow_s in devices.items()]
    with Federation(nodes, out / "federation", tell) as federation:
        tell(f"== recording {rounds} rounds of FedAvg")
        fedavg = run_app(federation, recorded, out / "fedavg.jsonl", rounds)
        tell("== replaying the recording")
        lesson_command(["replay", str(out / "fedavg.jsonl")])
        if len(fedavg.rounds) > MIN_ROUNDS:
            lesson_command(["replay", str(out / "fedavg.jsonl"), "--check"])
        fitted = fit(fedavg)
        deadline_s = choose_deadline_s(fitted)
        num_rounds = 1 + math.ceil((fedavg.end_s - fedavg.rounds[0].end_s) / (deadline_s + fitted.overhead_s))
        tell(f"== switching to LESSON with a deadline of {deadline_s:g} s, for the same time: {num_rounds} rounds")
        after = run_app(federation, switched, out / "lesson.jsonl", num_rounds, deadline_s)
    tell("== gain of LESSON over FedAvg, without the first round of each run")
    tell(str(compare(fedavg, after, deadline_s)))
    tell("some processes are still running" if federation.alive() else "all processes have ended")


def main() -> None:
    """Run a trial as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, help=f"number of SuperNodes, at most {len(DEVICES)} (default: all)")
    parser.add_argument("--rounds", type=int, help=f"number of rounds of FedAvg (default: {ROUNDS})")
    parser.add_argument("--quick", action="store_true", help=f"{len(QUICK_DEVICES)} nodes and {QUICK_ROUNDS} rounds")
    out = Path(time.strftime("runs/trial-%Y%m%d-%H%M%S"))
    parser.add_argument("--out", type=Path, default=out, help="output folder (default: a new folder in runs)")
    given = parser.parse_args()
    devices = QUICK_DEVICES if given.quick else DEVICES
    nodes = len(devices) if given.nodes is None else given.nodes
    rounds = (QUICK_ROUNDS if given.quick else ROUNDS) if given.rounds is None else given.rounds
    if not 1 <= nodes <= len(devices) or rounds < 2:
        parser.error(f"--nodes must be from 1 to {len(devices)} and --rounds >= 2, got {nodes} and {rounds}")
    if given.out.exists():
        parser.error(f"--out must be a new folder, got {given.out}")
    for number in (signal.SIGTERM, signal.SIGHUP):  # shut everything down then, too
        signal.signal(number, lambda *_: sys.exit(143))
    begin_s = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - begin_s:5.0f} s  {line}", flush=True)

    chosen = [round(place * (len(devices) - 1) / max(1, nodes - 1)) for place in range(nodes)]  # of all speeds
    names = list(devices)
    try:
        run_trial({names[place]: devices[names[place]] for place in chosen}, rounds, given.out, tell)
    except FederationError as error:
        parser.exit(1, f"error: {error}\n")
    except KeyboardInterrupt:
        parser.exit(130, "stopped by Ctrl-C; all processes have ended\n")


if __name__ == "__main__":
    main()

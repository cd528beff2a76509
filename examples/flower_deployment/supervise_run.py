"""Keeps one run of a Flower app going: submits it, waits until it ends, and says by its exit status how it ended.

    python supervise_run.py APP SUPERLINK CONFIG.toml STATE

APP is the folder of the app, SUPERLINK a connection of Flower's config.toml, CONFIG.toml the run config, and STATE a
file that keeps the id of the run. If the run in STATE is still active, it is not submitted again. The exit status is 0
if the run has completed and 1 otherwise, so that a service manager can start this program again; with `resume = true`
in the run config, the run then continues from its last checkpoint. SIGTERM stops the run. The log of the run, which
Flower keeps in the SuperLink's database, is printed here.
"""

import argparse
import json
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

POLL_S = 10.0
LOG_EVERY = 3
"""The log is read at every third poll."""
STOP_S = 120.0
"""Seconds to wait for the run to end after it was stopped."""


LEVEL = re.compile(r"\x1b\[\d+m(\w+) *\x1b\[0m: {0,6}")
"""Flower's prefix of a log line: its level, in color."""


class FlowerError(Exception):
    """A command of Flower has failed; the message is one line."""


def main() -> None:
    """Supervise the run that the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("app", type=Path)
    parser.add_argument("superlink")
    parser.add_argument("config", type=Path)
    parser.add_argument("state", type=Path)
    given = parser.parse_args()
    problem = config_problem(given.config)
    if problem:
        parser.exit(2, f"error: {given.config}: {problem}\n")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # a run can be stopped when its id is known
    run = ""
    try:
        run = active_run(given.state, given.superlink) or submit(given.app, given.superlink, given.config, given.state)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        status = wait_until_ended(run, given.superlink)
    except FlowerError as error:
        parser.exit(1, f"error: {error}\n")
    except SystemExit:
        if run:
            stop(run, given.superlink)
        raise
    tell(f"run {run}: {status}")
    sys.exit(0 if status == "finished:completed" else 1)


def config_problem(path: Path) -> str:
    """Return why a run config is not fit to be supervised; an empty string if it is."""
    try:
        config = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        return str(error)
    if config.get("resume") is not True:
        return "resume must be true; otherwise the run cannot continue after a crash"
    if not Path(config.get("out", "")).is_absolute():
        return f"out must be an absolute path, got '{config.get('out', '')}'"
    return ""


def active_run(state: Path, superlink: str) -> str:
    """Return the id of the run in the state file if it has not ended; an empty string otherwise."""
    run = state.read_text().strip() if state.exists() else ""
    if not run:
        return ""
    try:
        status = status_of(run, superlink)
    except FlowerError as error:
        if "not found" not in str(error).lower():
            raise
        status = "unknown to this SuperLink"
    if status.startswith(("finished", "unknown")):
        tell(f"run {run}: {status}")
        return ""
    tell(f"run {run} is still active ({status})")
    return run


def submit(app: Path, superlink: str, config: Path, state: Path) -> str:
    """Submit a new run and return its id."""
    run = str(flwr("run", app, superlink, "--run-config", config)["run-id"])
    state.parent.mkdir(parents=True, exist_ok=True)
    aside = state.with_name(f".{state.name}.aside")
    aside.write_text(f"{run}\n")
    aside.replace(state)
    tell(f"run {run}: submitted")
    return run


def wait_until_ended(run: str, superlink: str) -> str:
    """Return the final status of a run. The SuperLink may be unreachable for a while, such as during a restart."""
    unreachable, polls, printed = False, 0, 0
    while True:
        try:
            status = status_of(run, superlink)
            if unreachable:
                tell(f"the SuperLink is reachable again; run {run}: {status}")
            unreachable, ended, polls = False, status.startswith("finished"), polls + 1
            if ended or polls % LOG_EVERY == 0:
                printed = print_log(run, superlink, printed)
            if ended:
                return status
        except FlowerError as error:
            if not unreachable:
                tell(f"cannot ask for the status of run {run}: {error}")
            unreachable = True
        time.sleep(POLL_S)


def stop(run: str, superlink: str) -> None:
    """Stop a run and wait until it has ended."""
    try:
        flwr("stop", run, superlink)
        until_s = time.monotonic() + STOP_S
        while not (status := status_of(run, superlink)).startswith("finished") and time.monotonic() < until_s:
            time.sleep(1.0)
        tell(f"run {run}: {status}")
    except FlowerError as error:
        tell(f"run {run} could not be stopped: {error}")


def status_of(run: str, superlink: str) -> str:
    """Return the status of a run, such as 'running' or 'finished:completed'."""
    return str(flwr("ls", superlink, "--run-id", run)["runs"][0]["status"])


def print_log(run: str, superlink: str, printed: int) -> int:
    """Print the log of a run from line `printed` on; return the number of lines printed so far."""
    try:
        log = output_of("log", run, superlink, "--show").stdout
    except FlowerError as error:
        tell(f"cannot read the log of run {run}: {error}")
        return printed
    # The first line names the connection. Flower adds an empty line after the last one, which is not there next time.
    lines = [LEVEL.sub(r"\1: ", line) for line in log.splitlines()[1:] if line]
    for line in lines[printed:]:
        tell(line)
    return max(printed, len(lines))


def flwr(*command: object) -> dict[str, Any]:
    """Return the answer of a command of Flower."""
    done = output_of(*command, "--format", "json")
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        raise FlowerError(f"flwr {command[0]} failed: {one_line(done.stderr or done.stdout)}") from None
    if done.returncode or not answer.get("success", True):
        raise FlowerError(f"flwr {command[0]} failed: {one_line(str(answer.get('error-message', answer)))}")
    return answer


def output_of(*command: object) -> "subprocess.CompletedProcess[str]":
    """Execute a command of Flower and return its result."""
    words = ["flwr", *map(str, command)]
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:
        raise FlowerError(f"flwr {words[1]} did not answer within 120 s") from None


def one_line(text: str) -> str:
    """Return the end of a text on one line."""
    return " ".join(text.split())[-300:]


def tell(line: str) -> None:
    """Print a line at once, for the journal."""
    print(line, flush=True)


if __name__ == "__main__":
    main()

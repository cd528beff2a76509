"""Starting, waiting for, finding and ending processes on this machine, with time limits."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

PORTS = range(20_000, 32_000)


class FederationError(Exception):
    """The federation cannot continue; the message is one line that says why."""


def wait(
    what: str,
    limit_s: float,
    done: Callable[[], bool],
    check: Callable[[], None] = lambda: None,
    every_s: float = 0.3,
) -> None:
    """Wait until `done` returns true, calling `check` meanwhile; raise FederationError after `limit_s` seconds."""
    until_s = time.monotonic() + limit_s
    while not done():
        check()
        if time.monotonic() > until_s:
            raise FederationError(f"timed out after {limit_s:g} s, waiting for {what}")
        time.sleep(every_s)


def output_of(command: Iterable[object], env: Mapping[str, str], limit_s: float = 180) -> str:
    """Execute a command and return its output; raise FederationError if it fails or takes longer than `limit_s`."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=limit_s, start_new_session=True)
    except subprocess.TimeoutExpired:
        raise FederationError(f"{' '.join(words[:3])} did not end within {limit_s:g} s") from None
    if done.returncode:
        raise FederationError(f"{' '.join(words[:3])} failed: {' '.join((done.stderr or done.stdout).split())}")
    return done.stdout


def start(command: Iterable[object], env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process in the folder of its log, and in its own session so that Ctrl-C does not reach it."""
    words, quiet = [str(word) for word in command], subprocess.DEVNULL
    with log.open("ab") as file:
        return subprocess.Popen(
            words, env=env, cwd=log.parent, stdin=quiet, stdout=file, stderr=file, start_new_session=True
        )


def end(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """Terminate processes; kill those that have not ended after 10 seconds."""
    processes = list(processes)
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def find_all(name: str, value: str) -> dict[int, str]:
    """Return the command of every process that has this environment variable, by process id.

    This also finds processes that have left their group or whose parent has ended.
    """
    mark, found = f"{name}={value}\0".encode(), {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended, or belongs to another user
            if mark in (folder / "environ").read_bytes() + b"\0":
                found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ").strip()
    return found


def end_all(name: str, value: str, grace_s: float = 3.0) -> None:
    """End all processes that have this environment variable; kill those still running after `grace_s` seconds."""
    with contextlib.suppress(FederationError):
        wait("processes to end", grace_s, lambda: not find_all(name, value))
    for process in find_all(name, value):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    wait("all processes to be gone", 60, lambda: not find_all(name, value))


def free_ports(count: int) -> list[int]:
    """Return distinct free ports, below the range from which outgoing connections get theirs."""
    ports: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", port))
            ports.append(port)
            if len(ports) == count:
                return ports
    raise FederationError(f"found no {count} free ports between {PORTS.start} and {PORTS.stop}")


def listens(port: int) -> bool:
    """Return whether a process listens on a port."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False

"""Processes of this machine: started, waited for, found again and ended, all within a time."""

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
    """The federation cannot go on; the message says why, in one line."""


def wait(what: str, limit_s: float, done: Callable[[], bool], check: Callable[[], None] = lambda: None) -> None:
    """Come back when it is done; raise when that takes too long, or the check does."""
    until_s = time.monotonic() + limit_s
    while not done():
        check()
        if time.monotonic() > until_s:
            raise FederationError(f"waited {limit_s:g} s for {what}, in vain")
        time.sleep(0.3)


def output_of(command: Iterable[object], env: Mapping[str, str], limit_s: float = 180) -> str:
    """What a command prints."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=limit_s, start_new_session=True)
    except subprocess.TimeoutExpired:
        raise FederationError(f"{' '.join(words[:3])} has not come back in {limit_s:g} s") from None
    if done.returncode:
        raise FederationError(f"{' '.join(words[:3])} failed: {' '.join((done.stderr or done.stdout).split())}")
    return done.stdout


def start(command: Iterable[object], env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """A process in a session of its own, so that Ctrl-C reaches us alone, which works where its log is."""
    words, quiet = [str(word) for word in command], subprocess.DEVNULL
    with log.open("ab") as file:
        return subprocess.Popen(
            words, env=env, cwd=log.parent, stdin=quiet, stdout=file, stderr=file, start_new_session=True
        )


def end(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """Ask processes to end, and make those end that do not."""
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
    """Every process with this in its environment, with its command: also those that left their group or parent."""
    mark, found = f"{name}={value}\0".encode(), {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended, or is somebody else's
            if mark in (folder / "environ").read_bytes() + b"\0":
                found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ").strip()
    return found


def end_all(name: str, value: str, grace_s: float = 3.0) -> None:
    """Come back when there is no process with this in its environment; those there are have a moment to end."""
    with contextlib.suppress(FederationError):
        wait("processes to end", grace_s, lambda: not find_all(name, value))
    for process in find_all(name, value):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    wait("all processes to be gone", 60, lambda: not find_all(name, value))


def free_ports(count: int) -> list[int]:
    """Return distinct ports that nobody listens on, below those that outgoing connections take at any moment."""
    ports: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", port))
            ports.append(port)
            if len(ports) == count:
                return ports
    raise FederationError(f"{count} free ports are needed between {PORTS.start} and {PORTS.stop}")


def listens(port: int) -> bool:
    """Whether somebody listens on a port."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False

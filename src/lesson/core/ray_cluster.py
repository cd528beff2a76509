"""Connection to Ray: to an existing cluster, or to one that is started on this machine."""

import contextlib
import importlib.util
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from lesson.core.errors import ArgumentError, InputError

CONNECT_S = 5.0


def check_installed() -> None:
    """Raise InputError if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise InputError("Ray is not installed; run pip install 'lesson-fl[ray]', or '.[ray]' in a clone")


def check_address(address: str, name: str = "address") -> None:
    """Raise InputError unless the address accepts connections: Ray itself would retry for minutes.

    `name` is what the error calls the address.
    """
    host, _, port = address.rpartition(":")
    if address == "auto":
        return
    if not host or not port.isdecimal() or "/" in host:  # Ray Client, ray://…, is not supported
        raise ArgumentError(name, f"must be HOST:PORT of a cluster's head node, or auto, got '{address}'")
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except (OSError, OverflowError) as error:
        problem = f"'{address}' does not answer: {error}; 'ray status' shows the right one"
        raise ArgumentError(name, problem) from None


@contextlib.contextmanager
def connected(address: str | None, *, name: str = "address", num_cpus: int | None = None) -> Iterator[ModuleType]:
    """Connect to Ray, silence its messages, and yield the library; without an address, start a local cluster.

    The local cluster has `num_cpus` CPUs, by default those of this machine, and ends with the context. A process that
    is already connected, such as a Ray task, keeps its connection.
    """
    check_installed()
    if address is not None:
        check_address(address, name)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # avoids a warning about the future default
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # Ray prints at length when a worker is killed
    import ray

    if ray.is_initialized():
        yield ray
        return
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    with _signals_kept():
        if address is None:
            os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
            ray.init(address="local", num_cpus=num_cpus, include_dashboard=False, **quiet)
        else:
            try:
                ray.init(address=address, **quiet)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise ArgumentError(name, f"'{address}' cannot be used: {error}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore the SIGTERM handler on exit: Ray replaces it with one that exits without a checkpoint."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)

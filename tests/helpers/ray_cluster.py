"""A Ray cluster in another process, since Ray leaves files and processes to Python's garbage collector."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
CLUSTER = """
import logging, sys, ray
ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""


@contextmanager
def running_cluster() -> Iterator[str]:
    """Start a cluster with two CPUs and yield its address; check that it is still there afterwards."""
    cluster = subprocess.Popen([sys.executable, "-c", CLUSTER], stdin=-1, stdout=-1, text=True)
    try:
        assert cluster.stdout is not None
        yield cluster.stdout.readline().strip()
        assert cluster.poll() is None
    finally:
        cluster.communicate("", timeout=60)

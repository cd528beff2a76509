"""Measure LessonStrategy with many nodes on one machine: simulated by Flower's engine, and as SuperNode processes.

The model has 10,000 parameters and the clients hardly compute, so the figures show the overhead of messages and
processes. In simulation, latencies are drawn and time is virtual; with SuperNodes, rounds have a real deadline. The
table has the messages that got no usable reply, and the peak memory of all processes together (proportional set size).
"""

import argparse
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "examples" / "flower_deployment"))
from local_processes import FederationError, end, end_all, find_all, free_ports, listens, output_of, start, wait

PROJECT = """
[project]
name = "flower-scale"
version = "1.0.0"
description = "Many nodes"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "lesson-fl"

[tool.flwr.app.components]
serverapp = "many_nodes.server_app:app"
clientapp = "many_nodes.client_app:app"

[tool.flwr.app.config]
nodes = 2
rounds = 2
deadline = 20.0
"""
SERVER = """
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp
from lesson.flower import LessonStrategy

app = ServerApp()

@app.main()
def main(grid, context):
    config = context.run_config
    strategy = LessonStrategy(config["deadline"], min_available_nodes=config["nodes"], fraction_evaluate=0.0)
    arrays = ArrayRecord({"w": Array(np.zeros(10_000, dtype=np.float32))})
    strategy.start(grid, arrays, num_rounds=config["rounds"], train_config=ConfigRecord({"lr": 0.1}))
"""
CLIENT = """
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    content = {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=message)
"""
ROUND = re.compile(r"round (\d+)/\d+: (\d+) aggregated, (\d+) started, ([\d.]+) s")
REJECTED = re.compile(r"rejected: (.+)")
MIN_FREE_MB = 6000
"""No more SuperNodes are started when less memory than this is available."""


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    simulated: bool
    num_nodes: int
    rounds: int
    deadline_s: float


FULL = (Case(True, 50, 10, 20.0), Case(True, 200, 10, 20.0), Case(False, 50, 3, 120.0))
QUICK = (Case(True, 3, 2, 20.0),)


class Memory:
    """Peak memory in MB of all processes that have an environment variable, sampled in a thread."""

    def __init__(self, name: str, value: str) -> None:
        self._name, self._value, self._ended = name, value, threading.Event()
        self.peak_mb, self.num_processes = 0.0, 0
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop sampling."""
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(2.0):
            sizes = [_pss_mb(process) for process in find_all(self._name, self._value)]
            self.peak_mb = max(self.peak_mb, sum(sizes))
            self.num_processes = max(self.num_processes, len(sizes))


def _pss_mb(process: int) -> float:
    """Return the memory of a process in MB, in which shared pages count in proportion; 0 if it has ended."""
    with suppress(OSError):
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{process}/smaps_rollup").read_text(), re.MULTILINE)
        return int(found[1]) / 1000 if found else 0.0
    return 0.0


def _available_mb() -> float:
    (line,) = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable:")]
    return int(line.split()[1]) / 1000


def _write_app(folder: Path) -> Path:
    app = folder / "many-nodes"
    (app / "many_nodes").mkdir(parents=True)
    (app / "pyproject.toml").write_text(PROJECT)
    for name, text in (("__init__", ""), ("server_app", SERVER), ("client_app", CLIENT)):
        (app / "many_nodes" / f"{name}.py").write_text(text)
    return app


def measure(case: Case, folder: Path) -> str:
    """Run a case and return its row of the table."""
    port, *ports = free_ports(1 + case.num_nodes)
    home = folder / "home"
    env = os.environ | {
        "PATH": f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "OMP_NUM_THREADS": "1",
    }
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    app = _write_app(folder)
    with ExitStack() as stack:
        stack.callback(end_all, "FLWR_HOME", str(home))
        mode = ["--simulation"] if case.simulated else []
        command = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", port, *mode]
        processes = [start(command, env, folder / "superlink.log")]
        stack.callback(lambda: end(reversed(processes)))
        wait("the SuperLink to listen", 300, lambda: listens(port))
        memory = Memory("FLWR_HOME", str(home))
        stack.callback(memory.close)
        num_nodes = case.num_nodes
        if not case.simulated:
            num_nodes = _start_nodes(processes, port, ports, env, folder)
        idle_mb = 0.0 if case.simulated else _idle_mb(memory)
        settings = f"nodes={num_nodes} rounds={case.rounds} deadline={case.deadline_s}"
        nodes = f"num-supernodes={num_nodes} client-resources-num-cpus=1"
        more = ["--federation-config", nodes] if case.simulated else []
        begin_s = time.monotonic()
        log = output_of(["flwr", "run", app, "here", "--stream", "-c", settings, *more], env, 1800)
        took_s = time.monotonic() - begin_s
        (run, *_) = json.loads(output_of(["flwr", "ls", "here", "--format", "json"], env))["runs"]
    rounds = ROUND.findall(log)
    rejected = REJECTED.findall(log)
    if run["status"] != "finished:completed" or not rounds or not rejected:
        print((folder / "superlink.log").read_text()[-3000:], file=sys.stderr)
        raise FederationError(f"{num_nodes} nodes: {run['status']} ({run['status-details']}) after {took_s:.0f} s")
    merged, started = (sum(int(found[place]) for found in rounds) for place in (1, 2))
    kind = "simulated" if case.simulated else "SuperNodes"
    idle = f"{idle_mb:,.0f}" if idle_mb else "–"
    row = [kind, num_nodes, len(rounds), f"{rounds[-1][3]} s", f"{took_s:.0f}", started, merged, rejected[-1]]
    return " | ".join(["", *map(str, row), idle, f"{memory.peak_mb:,.0f}", str(memory.num_processes), ""]).strip()


def _start_nodes(
    processes: list[subprocess.Popen[bytes]], port: int, ports: list[int], env: dict[str, str], folder: Path
) -> int:
    """Start SuperNodes one after the other while there is enough memory; return how many."""
    for number, node_port in enumerate(ports):
        if _available_mb() < MIN_FREE_MB:
            print(f"stopped at {number} SuperNodes: less than {MIN_FREE_MB} MB are available", file=sys.stderr)
            return number
        config = f"partition-id={number} num-partitions={len(ports)}"
        command = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", "--host", "127.0.0.1"]
        command += ["--port", str(node_port), "--node-config", config]
        processes.append(start(command, env, folder / f"node{number}.log"))
        time.sleep(1.0)
    return len(ports)


def _idle_mb(memory: Memory) -> float:
    """Return the memory of all processes before the run begins."""
    time.sleep(15.0)
    return memory.peak_mb


HEAD = ["nodes", "number", "rounds", "last round ends at", "run (s)", "models sent", "aggregated", "rejected"]
HEAD += ["idle (MB)", "peak (MB)", "processes"]


def main() -> None:
    """Print a row per case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny case")
    parser.add_argument("--simulated", type=int, help="only this many simulated nodes")
    parser.add_argument("--supernodes", type=int, help="only this many SuperNode processes")
    given = parser.parse_args()
    cases: tuple[Case, ...] = QUICK if given.quick else FULL
    if given.simulated or given.supernodes:
        simulated = [Case(True, given.simulated, 10, 20.0)] if given.simulated else []
        cases = (*simulated, *([Case(False, given.supernodes, 3, 120.0)] if given.supernodes else []))
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="lesson-scale-", ignore_cleanup_errors=True) as folder:
            print(measure(case, Path(folder)), flush=True)


if __name__ == "__main__":
    main()

"""Measure LessonStrategy with many SuperNodes on one machine: rounds, lost messages, requests, memory and CPU time.

The model has 10,000 parameters and the clients, which use NumPy, hardly compute, so the figures show the overhead of
messages and processes. All devices share this machine, so a message takes longer than on devices of their own.
"""

import argparse
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

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
out = ""
resume = false
"""
SERVER = """
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp
from lesson.flower import LessonStrategy, RunFolder

app = ServerApp()

@app.main()
def main(grid, context):
    config = context.run_config
    folder = RunFolder(config["out"], resume=config["resume"])
    strategy = LessonStrategy(
        config["deadline"], min_available_nodes=config["nodes"], fraction_evaluate=0.0, folder=folder
    )
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
REQUEST = re.compile(r'"POST /v1/(\w+)/([\w-]+) HTTP/1.1" (\d+)')
LOCKED, BEGUN = "database is locked", "Start `flwr-clientapp` process"
MIN_FREE_MB = 4000
"""No more SuperNodes are started when less memory than this is available."""
RUN_LIMIT_S, IDLE_S = 900.0, 15.0


class Memory:
    """Peak memory in MB of all processes with a FLWR_HOME, and of the SuperLink, sampled in a thread."""

    def __init__(self, home: Path, superlink: int) -> None:
        self._home, self._superlink, self._ended = str(home), superlink, threading.Event()
        self.peak_mb = self.superlink_mb = 0.0
        self.loads: list[float] = []
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop sampling."""
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(5.0):
            self.peak_mb = max(self.peak_mb, sum(map(_pss_mb, find_all("FLWR_HOME", self._home))))
            self.superlink_mb = max(self.superlink_mb, _pss_mb(self._superlink))
            self.loads.append(os.getloadavg()[0])


def _pss_mb(process: int) -> float:
    """Return the memory of a process in MB, in which shared pages count in proportion; 0 if it has ended."""
    with suppress(OSError):
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{process}/smaps_rollup").read_text(), re.MULTILINE)
        return int(found[1]) / 1000 if found else 0.0
    return 0.0


def _available_mb() -> float:
    (line,) = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable:")]
    return int(line.split()[1]) / 1000


def _cpu_s(home: Path, port: int) -> dict[str, float]:
    """Return the CPU seconds of the SuperLink at a port, of the SuperNodes, and of server and client processes."""
    ticks, commands = Counter[str](), find_all("FLWR_HOME", str(home))
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            process, fields = int(stat.parent.name), stat.read_text().rpartition(")")[2].split()
            # A server or client process that has ended has no environment and no command until its parent reaps it.
            command = commands.get(process) or commands.get(int(fields[1]))
            if command is not None:
                program = next((name for name in ("superlink", "supernode") if f"flower-{name}" in command), "")
                starts = "server apps" if f"127.0.0.1:{port}" in command else "client apps"
                own, of_reaped = (sum(map(int, fields[place : place + 2])) for place in (11, 13))
                ticks[program or starts] += own + (0 if program else of_reaped)
    return {name: count / os.sysconf("SC_CLK_TCK") for name, count in ticks.items()}


def _write_app(folder: Path) -> Path:
    app = folder / "many-nodes"
    (app / "many_nodes").mkdir(parents=True)
    (app / "pyproject.toml").write_text(PROJECT)
    for name, text in (("__init__", ""), ("server_app", SERVER), ("client_app", CLIENT)):
        (app / "many_nodes" / f"{name}.py").write_text(text)
    return app


def measure(given: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Run a federation and return what was measured."""
    port, *ports = free_ports(1 + given.nodes)
    home, out, log = folder / "home", folder / "out", folder / "superlink.log"
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
        database = [] if given.in_memory else ["--database", folder / "state.db"]
        command = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", port, *database]
        level = {} if given.uncounted else {"FLWR_LOG_LEVEL": "DEBUG"}  # logs a line per request
        processes = [start(command, env | level, log)]
        stack.callback(lambda: end(reversed(processes)))
        wait("the SuperLink to listen", 300, lambda: listens(port))
        memory = Memory(home, processes[0].pid)
        stack.callback(memory.close)
        interval = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(given.task_poll)}
        _start_nodes(processes, port, ports, env | interval, folder)
        time.sleep(IDLE_S)
        idle_mb, idle = memory.peak_mb, Interval(home, port, log)
        time.sleep(IDLE_S)
        idle.end()
        memory.loads.clear()
        busy = Interval(home, port, log)
        if given.kill:
            threading.Thread(target=_kill, args=(given.kill, home, out, processes[-1]), daemon=True).start()
        for resume in ("false", "true"):
            settings = f"nodes={given.nodes} rounds={given.rounds} deadline={given.deadline} resume={resume}"
            command = ["flwr", "run", app, "here", "--stream", "-c", f'{settings} out="{out}"']
            told = output_of(command, env, RUN_LIMIT_S)
            (run, *_) = json.loads(output_of(["flwr", "ls", "here", "--format", "json"], env))["runs"]
            if run["status"] == "finished:completed" or given.kill != "server-app":
                break
        busy.end()
    if given.verbose or run["status"] != "finished:completed":
        print(told, file=sys.stderr)
    if run["status"] != "finished:completed":
        raise FederationError(
            f"{given.nodes} nodes: {run['status']} ({run['status-details']}) after {busy.took_s:.0f} s"
        )
    begun = sum(path.read_text(errors="replace").count(BEGUN) for path in folder.glob("node*.log"))
    messages, loads = _messages(out / "flight.jsonl"), sorted([os.getloadavg()[0], *memory.loads])
    return {
        "nodes": given.nodes,
        "load average": [round(load, 1) for load in (loads[0], statistics.median(loads), loads[-1])],
        **messages,
        "client processes": begun,
        "run (s)": round(busy.took_s),
        "database is locked": log.read_text(errors="replace").count(LOCKED),
        "CPU per message (s)": {name: round(s / max(1, messages["asked"]), 3) for name, s in busy.cpu_s.items()},
        "requests/s": busy.rates(),
        "idle: CPU (s/s)": {name: round(s / idle.took_s, 4) for name, s in idle.cpu_s.items()},
        "idle: requests/s": idle.rates(),
        "memory (MB)": {"idle": round(idle_mb), "peak": round(memory.peak_mb), "SuperLink": round(memory.superlink_mb)},
    }


class Interval:
    """CPU time of the processes and requests to the SuperLink between two moments."""

    def __init__(self, home: Path, port: int, log: Path) -> None:
        self._home, self._port, self._log, self._place = home, port, log, log.stat().st_size
        self._begin_s, self._begin_cpu_s = time.monotonic(), _cpu_s(home, port)

    def end(self) -> None:
        """Measure what has happened since the beginning."""
        self.took_s = time.monotonic() - self._begin_s
        self.cpu_s = {
            name: seconds - self._begin_cpu_s[name] for name, seconds in _cpu_s(self._home, self._port).items()
        }
        text = self._log.read_bytes()[self._place :].decode(errors="replace")
        self._requests = Counter(REQUEST.findall(text))

    def rates(self) -> dict[str, float]:
        """Return the number of requests per second: in total, by the server app, with an HTTP error, and by kind."""
        counts = Counter[str]()
        for (api, kind, status), count in self._requests.items():
            counts["total"] += count
            counts["server app"] += count if api == "runtime" and kind != "acquire-task" else 0
            counts["HTTP 500"] += count if status.startswith("5") else 0
            counts[f"{api} {kind}"] += count
        return {name: round(count / self.took_s, 3) for name, count in counts.most_common()}


def _messages(recording: Path) -> dict[str, Any]:
    """Return from a recording how long rounds and messages took, and how many messages had no usable reply."""
    events = [json.loads(line) for line in recording.read_text().splitlines()[1:]]
    asked = {event["job"]: event for event in events if event["event"] == "asked"}
    arrived = [event for event in events if event["event"] == "arrived"]
    failed = Counter(event["reason"] for event in events if event["event"] == "failed")
    rounds = [event for event in events if event["event"] == "round"]
    ends = [event["t_s"] for event in rounds]
    lengths = [end_s - begin_s for begin_s, end_s in itertools.pairwise(ends)]
    took = sorted(event["t_s"] - asked[event["job"]]["t_s"] for event in arrived)
    return {
        "asked": len(asked),
        "arrived": len(arrived),
        "failed": dict(failed),
        "in flight at the end": len(asked) - len(arrived) - failed.total(),
        "aggregated": [len(event["merged"] or ()) for event in rounds],
        "first round (s)": round(ends[0], 1),
        "later rounds (s)": [round(length, 1) for length in lengths],
        "message (s)": {share: round(took[int(share * (len(took) - 1))], 1) for share in (0.1, 0.5, 0.9, 1.0)},
    }


def _start_nodes(
    processes: list[subprocess.Popen[bytes]], port: int, ports: list[int], env: dict[str, str], folder: Path
) -> None:
    """Start SuperNodes one after the other. Raises FederationError if there is not enough memory."""
    for number, node_port in enumerate(ports):
        if _available_mb() < MIN_FREE_MB:
            raise FederationError(f"{number} SuperNodes: less than {MIN_FREE_MB} MB are available")
        command = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", "--host", "127.0.0.1"]
        processes.append(start([*command, "--port", node_port], env, folder / f"node{number}.log"))
        time.sleep(1.0)


def _kill(which: str, home: Path, out: Path, supernode: subprocess.Popen[bytes]) -> None:
    """Kill the server app or a SuperNode in the second round."""
    recording = out / "flight.jsonl"
    while not recording.exists() or recording.read_text().count('"event": "round"') < 1:
        time.sleep(0.5)
    time.sleep(5.0)
    apps = [process for process, command in find_all("FLWR_HOME", str(home)).items() if "flwr-serverapp" in command]
    for process in [supernode.pid] if which == "supernode" else apps:
        os.kill(process, signal.SIGKILL)


def main() -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny case")
    parser.add_argument("--nodes", type=int, default=20, help="number of SuperNodes (20)")
    parser.add_argument("--rounds", type=int, default=6, help="number of rounds (6)")
    parser.add_argument("--deadline", type=float, default=30.0, help="length of a round in seconds (30)")
    poll = "seconds between two checks of a SuperNode for work, which spread the starts of client processes (1)"
    parser.add_argument("--task-poll", type=float, default=1.0, help=poll)
    parser.add_argument("--in-memory", action="store_true", help="run the SuperLink without a database file")
    parser.add_argument("--uncounted", action="store_true", help="do not count requests, to see what counting costs")
    parser.add_argument("--kill", choices=("supernode", "server-app"), help="kill one in the second round")
    parser.add_argument("--verbose", action="store_true", help="also print the log of the run")
    given = parser.parse_args()
    if given.quick:
        given.nodes, given.rounds, given.deadline = 2, 2, 5.0
    with tempfile.TemporaryDirectory(prefix="lesson-scale-", ignore_cleanup_errors=True) as folder:
        print("| figure | value |\n|---|---|")
        for name, value in measure(given, Path(folder)).items():
            print(f"| {name} | {json.dumps(value)} |")


if __name__ == "__main__":
    main()

"""A federation on this machine: a SuperLink with TLS, SuperNodes with registered keys, some of them slow on purpose.

    python examples/flower_deployment/federation.py --nodes 6 --rounds 9

starts the federation, trains MNIST, prints the tiers and the accuracy, and ends every process that it started. See
README.md.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from local_processes import FederationError, end, end_all, find_all, free_ports, listens, output_of, start, wait

APP = Path(__file__).parent / "app"
NAME = "local"
"""Name of the connection to the SuperLink in Flower's commands."""
SLOW_S = (0.0, 0.0, 6.0, 12.0, 20.0, 30.0)
"""Seconds that each node sleeps per local training; with more nodes, the values repeat."""
ASK_EVERY_S = 2.0
"""Polling interval of the SuperLink in seconds; each poll starts a Flower command, which takes a second of CPU time."""
LEVEL = re.compile(r"^\x1b\[92mINFO \x1b\[0m: {0,6}|\x1b\[\d+m| (?=\x1b\[0m:)")
"""Flower's prefix of most log lines, and the colors of others."""
TOOLS = {
    "openssl": "on Debian: apt install openssl",
    "ssh-keygen": "on Debian: apt install openssh-client",
    "flower-superlink": "pip install 'lesson-fl[flower]'",
}


class Federation:
    """A SuperLink and SuperNodes that run during a `with` block; all their processes end with it.

    `nodes` holds the node config of each SuperNode; if it has a `name`, the node is registered by this name. Keys, logs
    and Flower's own files are written to `folder`, by default a new temporary one.
    """

    def __init__(
        self,
        nodes: Sequence[Mapping[str, Any]],
        folder: Path | None = None,
        tell: Callable[[str], None] = print,
    ) -> None:
        _check_tools()
        self.nodes, self.tell = nodes, tell
        self.folder = folder.absolute() if folder else Path(tempfile.mkdtemp(prefix="lesson-federation-"))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.port, *self._node_ports = free_ports(1 + len(nodes))
        self._home = self.folder / "home"
        self._certificate = self.folder / "tls.crt"
        self.env = os.environ | {
            "PATH": _path(),
            "FLWR_HOME": str(self._home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        self._home.mkdir(parents=True)
        address = f'address = "127.0.0.1:{self.port}"\nroot-certificates = "{self._certificate}"\n'
        (self._home / "config.toml").write_text(f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\n{address}')
        self._start_superlink()
        for number, node in enumerate(self.nodes):
            self.register(self.make_key(f"node{number}"), str(node.get("name", "")))
        self.tell(f"== starting {len(self.nodes)} SuperNodes")
        for number in range(len(self.nodes)):
            self.start_node(number)
        wait("all nodes to be online", 300, self._all_online, self._check_processes, ASK_EVERY_S)

    def _start_superlink(self) -> None:
        """Start the SuperLink with a self-signed certificate, which is valid for this machine only."""
        self.tell(f"== creating a certificate and starting the SuperLink on port {self.port}")
        self._output("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-days", "30", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
            "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,digitalSignature,keyCertSign",
            "-keyout", self.folder / "tls.key", "-out", self._certificate)  # fmt: skip
        self._start("superlink", "flower-superlink", *self._listens_on(self.port), "--enable-supernode-auth",
            "--disable-runtime-dependency-installation", "--database", self.folder / "state.db")  # fmt: skip
        wait("the SuperLink to listen", 180, lambda: listens(self.port), self._check_processes)

    def make_key(self, name: str) -> Path:
        """Create a key pair for a node and return the private key; the public key has the suffix `.pub`."""
        self._output("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", name, "-f", self.folder / name)
        return self.folder / name

    def register(self, key: Path, name: str = "") -> None:
        """Register a key, so that the SuperLink accepts the node that has it, with a name for the node if given."""
        self._flwr("supernode", "register", f"{key}.pub", NAME, *(["--name", name] if name else []))
        self.tell(f"registered the key of {name or key.name}")

    def start_node(self, number: int, key: Path | None = None) -> None:
        """Start the SuperNode that holds this partition, with its own key or the given one."""
        told = {"partition-id": number, "num-partitions": len(self.nodes), **self.nodes[number]}
        self._start(f"node{number}", "flower-supernode", "--superlink", f"127.0.0.1:{self.port}",
            "--root-certificates", self._certificate, *self._listens_on(self._node_ports[number]),
            "--auth-supernode-private-key", key or self.folder / f"node{number}",
            "--node-config", " ".join(_assignments(told)))  # fmt: skip

    def begin(self, config: Mapping[str, Any], app: Path = APP) -> str:
        """Submit a run of an app with these changes to its run config; return the id of the run."""
        changes = [part for change in _assignments(config) for part in ("-c", change)]
        return str(self._flwr("run", app, NAME, *changes)["run-id"])

    def follow(self, run: str, limit_s: float = 3600) -> str:
        """Print the log of a run until it ends; return its final status, 'finished:completed' if it succeeded."""
        command = ["flwr", "log", run, NAME, "--stream"]
        log = subprocess.Popen(
            command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        alarm = threading.Timer(limit_s, log.kill)
        alarm.start()
        try:
            for line in log.stdout or ():
                self.tell(LEVEL.sub("", line.rstrip()))
        finally:
            alarm.cancel()
            log.kill()
            log.communicate()
        wait("the run to end", 300, lambda: self.status(run).startswith("finished"), every_s=ASK_EVERY_S)
        return self.status(run)

    def status(self, run: str) -> str:
        """Return Flower's status of a run; neither the log nor an exit status says whether the run succeeded."""
        return str(self._flwr("ls", NAME, "--run-id", run)["runs"][0]["status"])

    def log_of_run(self, run: str) -> str:
        """Return the log of a run so far."""
        return self._output("flwr", "log", run, NAME, "--show")

    def alive(self) -> dict[int, str]:
        """Return the command of each process of this federation by its id, including indirectly started ones."""
        return find_all("FLWR_HOME", str(self._home))

    def close(self) -> None:
        """End the nodes, then the SuperLink, then all remaining processes; Ctrl-C does not interrupt this."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.tell("== shutting down")
            end(process for name, process in self.processes.items() if name != "superlink")
            end(process for name, process in self.processes.items() if name == "superlink")
            end_all("FLWR_HOME", str(self._home))
        finally:
            signal.signal(signal.SIGINT, before)

    def _all_online(self) -> bool:
        online = [node["status"] for node in self._flwr("supernode", "list", NAME)["nodes"]].count("online")
        self.tell(f"{online} of {len(self.nodes)} nodes are online")
        return online == len(self.nodes)

    def _check_processes(self) -> None:
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise FederationError(f"{name} ended unexpectedly; see {self.folder / name}.log")

    def _listens_on(self, port: int) -> list[object]:
        secure = ["--ssl-ca-certfile", self._certificate, "--ssl-certfile", self._certificate]
        return ["--host", "127.0.0.1", "--port", port, *secure, "--ssl-keyfile", self.folder / "tls.key"]

    def _start(self, name: str, *command: object) -> None:
        self.processes[name] = start(command, self.env, self.folder / f"{name}.log")

    def _output(self, *command: object) -> str:
        return output_of(command, self.env)

    def _flwr(self, *command: object) -> dict[str, Any]:
        """Execute a command of Flower and return its answer."""
        answer: dict[str, Any] = json.loads(self._output("flwr", *command, "--format", "json"))
        if not answer.get("success", True):
            raise FederationError(f"flwr {command[0]} failed: {answer.get('error-message', answer)}")
        return answer


def _path() -> str:
    """Return the search path for commands; the scripts of this Python environment, such as Flower's, come first."""
    return f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"


def _check_tools() -> None:
    for tool, remedy in TOOLS.items():
        if shutil.which(tool, path=_path()) is None:
            raise FederationError(f"{tool} was not found; {remedy}")
    if not Path("/proc/self/environ").exists():
        raise FederationError("/proc is needed to find remaining processes; run this on Linux")


def _assignments(values: Mapping[str, Any]) -> list[str]:
    """Return each value as an assignment in TOML: name=value."""
    return [f"{name}={json.dumps(value)}" for name, value in values.items()]


def main() -> None:
    """Run a federation as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=6, help="number of SuperNodes (default: 6)")
    parser.add_argument("--rounds", type=int, default=9, help="number of rounds (default: 9)")
    parser.add_argument(
        "--slow-s", type=float, nargs="+", default=SLOW_S, help="seconds that each node sleeps per local training"
    )
    parser.add_argument("--strategy", default="lesson", help="name of a strategy; 'lesson strategies' lists them")
    parser.add_argument("--deadline", type=float, default=30.0, help="length of a round in seconds (default: 30)")
    out = Path(time.strftime("runs/flower-%Y%m%d-%H%M%S"))
    parser.add_argument("--out", type=Path, default=out, help="output folder (default: a new folder in runs)")
    given = parser.parse_args()
    if given.nodes < 1 or given.rounds < 1:
        parser.error(f"--nodes and --rounds must be >= 1, got {given.nodes} and {given.rounds}")
    nodes = [
        {"name": f"node{number}", "slow-s": given.slow_s[number % len(given.slow_s)]} for number in range(given.nodes)
    ]
    config = {
        "strategy": given.strategy,
        "deadline": given.deadline,
        "rounds": given.rounds,
        "min-nodes": given.nodes,
        "out": str(given.out.absolute()),
    }
    for number in (signal.SIGTERM, signal.SIGHUP):  # shut everything down then, too
        signal.signal(number, lambda *_: sys.exit(143))
    begin_s = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - begin_s:5.0f} s  {line}", flush=True)

    try:
        federation = Federation(nodes, tell=tell)
    except FederationError as error:
        parser.exit(1, f"error: {error}\n")
    try:
        with federation:
            tell("== training MNIST")
            status = federation.follow(federation.begin(config))
    except FederationError as error:
        status = str(error)
    except KeyboardInterrupt:
        status = "stopped by Ctrl-C"
    tell("some processes are still running" if federation.alive() else "all processes have ended")
    if status != "finished:completed":
        parser.exit(1, f"error: the run did not complete: {status}; logs are in {federation.folder}\n")
    shutil.rmtree(federation.folder)


if __name__ == "__main__":
    main()

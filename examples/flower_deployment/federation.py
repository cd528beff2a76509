"""A federation on this machine: a SuperLink with TLS, SuperNodes with registered keys, some of them slow on purpose.

    python examples/flower_deployment/federation.py --nodes 6 --rounds 9

brings it up, trains MNIST, prints the tiers and the accuracy, and ends every process that it started. See README.md.
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

APP = Path(__file__).parent.parent / "flower_app"
NAME = "local"
"""What Flower's commands call the connection to the SuperLink."""
SLOW_S = (0.0, 0.0, 0.15, 0.3, 0.5, 0.75)
"""Seconds that nodes waste at every minibatch, one node each, over and over."""
LOCAL_STEPS = 40
LEVEL = re.compile(r"^\x1b\[92mINFO \x1b\[0m: {0,6}")
"""What Flower writes before a line of a log."""
TOOLS = {
    "openssl": "on Debian: apt install openssl",
    "ssh-keygen": "on Debian: apt install openssh-client",
    "flower-superlink": "pip install 'lesson-fl[flower]'",
}


class Federation:
    """SuperLink and SuperNodes while a `with` block lasts; afterwards no process of theirs is left.

    Each node has a mapping of what its clients are told. Keys, logs and Flower's own files are in a folder, a new one
    among the temporary ones if none is given.
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
        self._env = os.environ | {
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
        for number in range(len(self.nodes)):
            self.register(self.make_key(f"node{number}"))
        self.tell(f"== {len(self.nodes)} SuperNodes")
        for number in range(len(self.nodes)):
            self.start_node(number)
        wait("all nodes to be online", 300, self._all_online, self._check_processes)

    def _start_superlink(self) -> None:
        """Start the SuperLink with a certificate that vouches for itself: good for this machine alone."""
        self.tell(f"== a certificate, and the SuperLink on port {self.port}")
        self._output("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-days", "30", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
            "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,digitalSignature,keyCertSign",
            "-keyout", self.folder / "tls.key", "-out", self._certificate)  # fmt: skip
        self._start("superlink", "flower-superlink", *self._listens_on(self.port), "--enable-supernode-auth",
            "--disable-runtime-dependency-installation", "--database", self.folder / "state.db")  # fmt: skip
        wait("the SuperLink to listen", 180, lambda: listens(self.port), self._check_processes)

    def make_key(self, name: str) -> Path:
        """A new key for a node; the part to register lies beside it, with `.pub` at the end."""
        self._output("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", name, "-f", self.folder / name)
        return self.folder / name

    def register(self, key: Path) -> None:
        """Let the node with this key take part."""
        self._flwr("supernode", "register", f"{key}.pub", NAME)
        self.tell(f"the key of {key.name} is registered")

    def start_node(self, number: int, key: Path | None = None) -> None:
        """Start the SuperNode with this part of the data, with its own key or another."""
        told = {"partition-id": number, "num-partitions": len(self.nodes), **self.nodes[number]}
        self._start(f"node{number}", "flower-supernode", "--superlink", f"127.0.0.1:{self.port}",
            "--root-certificates", self._certificate, *self._listens_on(self._node_ports[number]),
            "--auth-supernode-private-key", key or self.folder / f"node{number}",
            "--node-config", " ".join(_assignments(told)))  # fmt: skip

    def begin(self, config: Mapping[str, Any], app: Path = APP) -> str:
        """The number of a run of an app that begins, with these changes to its run config."""
        changes = [part for change in _assignments(config) for part in ("-c", change)]
        return str(self._flwr("run", app, NAME, *changes)["run-id"])

    def follow(self, run: str, limit_s: float = 3600) -> str:
        """How a run has ended: 'finished:completed' if well. Its log is told meanwhile."""
        command = ["flwr", "log", run, NAME, "--stream"]
        log = subprocess.Popen(
            command, env=self._env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
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
        wait("the run to end", 300, lambda: self.status(run).startswith("finished"))
        return self.status(run)

    def status(self, run: str) -> str:
        """Where a run stands, as Flower calls it; neither its log nor an exit code tells failure from success."""
        return str(self._flwr("ls", NAME, "--run-id", run)["runs"][0]["status"])

    def log_of_run(self, run: str) -> str:
        """What the server of a run has told so far."""
        return self._output("flwr", "log", run, NAME, "--show")

    def alive(self) -> dict[int, str]:
        """Our processes by number, with their commands: also those that others of ours have started."""
        return find_all("FLWR_HOME", str(self._home))

    def close(self) -> None:
        """End the nodes, then the SuperLink, then whatever they have left; Ctrl-C does not interrupt that."""
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
        self.tell(f"{online} of {len(self.nodes)} are online")
        return online == len(self.nodes)

    def _check_processes(self) -> None:
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise FederationError(f"{name} has ended; see {self.folder / name}.log")

    def _listens_on(self, port: int) -> list[object]:
        secure = ["--ssl-ca-certfile", self._certificate, "--ssl-certfile", self._certificate]
        return ["--host", "127.0.0.1", "--port", port, *secure, "--ssl-keyfile", self.folder / "tls.key"]

    def _start(self, name: str, *command: object) -> None:
        self.processes[name] = start(command, self._env, self.folder / f"{name}.log")

    def _output(self, *command: object) -> str:
        return output_of(command, self._env)

    def _flwr(self, *command: object) -> dict[str, Any]:
        """What a command of Flower answers."""
        answer: dict[str, Any] = json.loads(self._output("flwr", *command, "--format", "json"))
        if not answer.get("success", True):
            raise FederationError(f"flwr {command[0]} failed: {answer.get('error-message', answer)}")
        return answer


def _path() -> str:
    """Where commands are looked for: first where Flower's are, beside this interpreter."""
    return f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"


def _check_tools() -> None:
    for tool, remedy in TOOLS.items():
        if shutil.which(tool, path=_path()) is None:
            raise FederationError(f"{tool} must be there; {remedy}")
    if not Path("/proc/self/environ").exists():
        raise FederationError("/proc must be there, to find processes that are left; run this on Linux")


def _assignments(values: Mapping[str, Any]) -> list[str]:
    """Each as TOML has it: name=value."""
    return [f"{name}={json.dumps(value)}" for name, value in values.items()]


def main() -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--slow-s", type=float, nargs="+", default=SLOW_S, help="seconds wasted at every minibatch")
    parser.add_argument("--strategy", default="lesson", help="see 'lesson strategies'")
    parser.add_argument("--deadline", default="auto", help="seconds of a round; auto: what suits the nodes")
    parser.add_argument("--out", type=Path, default=Path(time.strftime("runs/flower-%Y%m%d-%H%M%S")))
    given = parser.parse_args()
    if given.nodes < 1 or given.rounds < 1:
        parser.error(f"--nodes and --rounds must be >= 1, got {given.nodes} and {given.rounds}")
    nodes = [{"slow-s": given.slow_s[number % len(given.slow_s)]} for number in range(given.nodes)]
    config = {
        "strategy": given.strategy,
        "deadline": given.deadline,
        "rounds": given.rounds,
        "time-budget": 3600.0,
        "eval-every": 1.0,
        "min-nodes": given.nodes,
        "out": str(given.out.absolute()),
        "set": f"training.local_steps={LOCAL_STEPS}",
    }
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that everything is shut down then, too
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
    tell("some processes are left" if federation.alive() else "no process is left")
    if status != "finished:completed":
        parser.exit(1, f"error: the run did not end well: {status}; logs are in {federation.folder}\n")
    shutil.rmtree(federation.folder)


if __name__ == "__main__":
    main()

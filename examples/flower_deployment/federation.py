"""A federation on this machine: a SuperLink with TLS, SuperNodes with registered keys, some of them slow on purpose.

    python examples/flower_deployment/federation.py --nodes 6 --rounds 9

brings it up, trains MNIST, prints the tiers and the accuracy, and ends every process that it started. See README.md.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

APP = Path(__file__).parent.parent / "flower_app"
NAME = "local"
"""What Flower's commands call the connection to the SuperLink."""
SLOW_S = (0.0, 0.0, 0.15, 0.3, 0.5, 0.75)
"""Seconds that nodes waste at every minibatch, one node each, over and over."""
LOCAL_STEPS = 40
LEVEL = re.compile("^\x1b\\[92mINFO \x1b\\[0m: {0,6}")
"""What Flower writes before a line of a log."""
TOOLS = {
    "openssl": "on Debian: apt install openssl",
    "ssh-keygen": "on Debian: apt install openssh-client",
    "flower-superlink": "pip install 'lesson-fl[flower]'",
}


class FederationError(Exception):
    """The federation cannot go on; the message says why, in one line."""


class Federation:
    """SuperLink and SuperNodes while a `with` block lasts; afterwards no process of theirs is left."""

    def __init__(self, folder: Path, nodes: Sequence[Mapping[str, Any]], tell: Callable[[str], None] = print) -> None:
        self.folder, self.nodes, self.tell = folder.absolute(), nodes, tell
        self.home = self.folder / "home"
        """Flower's own folder, and how our processes are known among all others."""
        self.port, *self._node_ports = _free_ports(1 + len(nodes))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._env = os.environ | {
            "PATH": f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(self.home),
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
        for tool, remedy in TOOLS.items():
            if shutil.which(tool, path=self._env["PATH"]) is None:
                raise FederationError(f"{tool} must be there; {remedy}")
        if not Path("/proc/self/environ").exists():
            raise FederationError("/proc must be there, to find processes that are left: run this on Linux")
        self.tell("== a certificate and the keys of the nodes")
        self.home.mkdir(parents=True)
        self._make_certificate()
        address = f'address = "127.0.0.1:{self.port}"\nroot-certificates = "{self.folder / "tls.crt"}"\n'
        (self.home / "config.toml").write_text(f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\n{address}')
        self.tell(f"== the SuperLink, on port {self.port}")
        self._start("superlink", ["flower-superlink", *self._listens_on(self.port), "--enable-supernode-auth",
            "--disable-runtime-dependency-installation", "--database", self.folder / "state.db"])  # fmt: skip
        wait("the SuperLink to listen", 60, lambda: _listens(self.port), self._check_superlink)
        for number in range(len(self.nodes)):
            self.register(self.make_key(f"node{number}"))
        self.tell(f"== {len(self.nodes)} SuperNodes")
        for number in range(len(self.nodes)):
            self.start_node(number)
        wait("all nodes to be online", 120, self._all_online, self._check_superlink)

    def _all_online(self) -> bool:
        self.tell(f"{(online := self.num_online())} of {len(self.nodes)} are online")
        return online == len(self.nodes)

    def _make_certificate(self) -> None:
        """A certificate that vouches for itself: good for one machine, see README.md for more."""
        self._run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-days", "30", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
            "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,digitalSignature,keyCertSign",
            "-keyout", self.folder / "tls.key", "-out", self.folder / "tls.crt")  # fmt: skip

    def make_key(self, name: str) -> Path:
        """A new key for a node; the part to register lies beside it, with `.pub` at the end."""
        self._run("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", name, "-f", self.folder / name)
        return self.folder / name

    def register(self, key: Path) -> None:
        """Let the node with this key take part."""
        self._flwr("supernode", "register", f"{key}.pub", NAME)
        self.tell(f"the key of {key.name} is registered")

    def start_node(self, number: int, key: Path | None = None) -> None:
        """Start a SuperNode that has a part of the data, with its own key or another."""
        told = {"partition-id": number, "num-partitions": len(self.nodes), **self.nodes[number]}
        self._start(f"node{number}", ["flower-supernode", "--superlink", f"127.0.0.1:{self.port}",
            "--root-certificates", self.folder / "tls.crt", *self._listens_on(self._node_ports[number]),
            "--auth-supernode-private-key", key or self.folder / f"node{number}",
            "--node-config", " ".join(_assignments(told))])  # fmt: skip

    def num_online(self) -> int:
        """How many nodes the SuperLink believes to be there."""
        return [node["status"] for node in self._flwr("supernode", "list", NAME)["nodes"]].count("online")

    def begin(self, config: Mapping[str, Any], app: Path = APP) -> str:
        """The number of a run of an app that begins, with these changes to its run config."""
        changes = [part for change in _assignments(config) for part in ("-c", change)]
        return str(self._flwr("run", app, NAME, *changes)["run-id"])

    def follow(self, run: str) -> str:
        """How a run has ended: 'finished:completed' if well. Its log is told meanwhile."""
        command = ["flwr", "log", run, NAME, "--stream"]
        with subprocess.Popen(
            command, env=self._env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        ) as log:
            try:
                for line in log.stdout or ():
                    self.tell(LEVEL.sub("", line.rstrip()))
            finally:
                log.kill()
        wait("the run to end", 90, lambda: self.status(run).startswith("finished"), self._check_superlink)
        return self.status(run)

    def status(self, run: str) -> str:
        """Where a run stands, as Flower calls it; the log alone does not tell failure from success."""
        return str(self._flwr("ls", NAME, "--run-id", run)["runs"][0]["status"])

    def log_of_run(self, run: str) -> str:
        """What the server of a run has told so far."""
        return self._run("flwr", "log", run, NAME, "--show")

    def log_of(self, name: str) -> str:
        """What a process has written, by its name: 'superlink', 'node0', …"""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def alive(self) -> dict[int, str]:
        """Every process that has our FLWR_HOME, with its command: also those that left their group or parent."""
        mark, found = f"FLWR_HOME={self.home}\0".encode(), {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has just ended, or is somebody else's
                if mark in (folder / "environ").read_bytes() + b"\0":
                    found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ").strip()
        return found

    def close(self) -> None:
        """End the nodes, then the SuperLink, then whatever they have left; Ctrl-C does not interrupt that."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            if self.processes:
                self.tell("== shutting down")
            superlink = self.processes.pop("superlink", None)
            for processes in (list(self.processes.values()), [superlink] if superlink else []):
                _end(processes)
            until_s = time.monotonic() + 3
            while self.alive() and time.monotonic() < until_s:
                time.sleep(0.2)
            for process in self.alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            wait("all processes to be gone", 10, lambda: not self.alive())
        finally:
            signal.signal(signal.SIGINT, before)

    def _listens_on(self, port: int) -> list[object]:
        secure = ["--ssl-ca-certfile", self.folder / "tls.crt", "--ssl-certfile", self.folder / "tls.crt"]
        return ["--host", "127.0.0.1", "--port", port, *secure, "--ssl-keyfile", self.folder / "tls.key"]

    def _start(self, name: str, command: Sequence[object]) -> None:
        """Start a process in a session of its own, so that Ctrl-C reaches us alone."""
        words = [str(word) for word in command]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                words, env=self._env, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def _check_superlink(self) -> None:
        if self.processes["superlink"].poll() is not None:
            raise FederationError(f"the SuperLink has ended; its log is {self.folder / 'superlink.log'}")

    def _run(self, *command: object) -> str:
        """What a command prints; it has a minute."""
        words = [str(word) for word in command]
        done = subprocess.run(
            words, env=self._env, capture_output=True, text=True, timeout=60, start_new_session=True, check=False
        )
        if done.returncode:
            raise FederationError(f"{' '.join(words[:3])} failed: {' '.join((done.stderr or done.stdout).split())}")
        return done.stdout

    def _flwr(self, *command: object) -> dict[str, Any]:
        """What a command of Flower answers."""
        answer: dict[str, Any] = json.loads(self._run("flwr", *command, "--format", "json"))
        if not answer.get("success", True):
            raise FederationError(f"flwr {command[0]} failed: {answer.get('error-message', answer)}")
        return answer


def _assignments(values: Mapping[str, Any]) -> list[str]:
    """Each as TOML has it: name=value."""
    return [f"{name}={json.dumps(value)}" for name, value in values.items()]


def _free_ports(count: int) -> list[int]:
    """Ports nobody listens on, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def wait(what: str, limit_s: float, done: Callable[[], bool], check: Callable[[], None] = lambda: None) -> None:
    """Come back when it is done; raise when that takes too long, or the check does."""
    until_s = time.monotonic() + limit_s
    while not done():
        check()
        if time.monotonic() > until_s:
            raise FederationError(f"waited {limit_s:g} s for {what}, in vain")
        time.sleep(0.3)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask processes to end, and make those end that do not."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> int:
    """The exit code of a demonstration."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--slow-s", type=float, nargs="+", default=SLOW_S, help="seconds wasted at every minibatch")
    parser.add_argument("--strategy", default="lesson", help="see 'lesson strategies'")
    parser.add_argument("--deadline", default="auto", help="seconds of a round; auto: what suits the nodes")
    parser.add_argument("--out", type=Path, default=Path(time.strftime("runs/flower-%Y%m%d-%H%M%S")))
    given = parser.parse_args()
    nodes = [{"slow-s": given.slow_s[number % len(given.slow_s)]} for number in range(given.nodes)]
    config = {
        "strategy": given.strategy,
        "deadline": given.deadline,
        "rounds": given.rounds,
        "time-budget": 3600.0,
        "eval-every": 1.0,
        "min-nodes": given.nodes,
        "out": str(given.out.absolute()),
        "set": f"scenario.local_steps={LOCAL_STEPS}",
    }
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is shut down then, too
    folder = Path(tempfile.mkdtemp(prefix="lesson-federation-"))
    begin_s = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - begin_s:5.0f} s  {line}", flush=True)

    try:
        with Federation(folder, nodes, tell) as federation:
            tell("== training MNIST")
            status = federation.follow(federation.begin(config))
    except (FederationError, KeyboardInterrupt) as error:
        print(f"stopped: {error}" if str(error) else "stopped", f"(logs: {folder})", file=sys.stderr)
        return 1
    tell("no process is left")
    if status != "finished:completed":
        print(f"the run has ended as {status}; logs: {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

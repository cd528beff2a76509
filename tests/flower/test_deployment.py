"""Real processes: a node that dies and comes back, a stranger, and a killed server, and a resume with another deadline.

`story` starts one federation to which all of this happens; the tests check what it left behind.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import safetensors
from back_up import back_up
from federation import APP, NAME, Federation
from local_processes import wait

from lesson.flight.recording import read_recording

pytestmark = pytest.mark.deployment
MANY, MORE = 1000, 2
"""Numbers of rounds: more than there is time for, and what is left for the resumed run."""
KILLED = 2


@dataclass
class Story:
    """What happened."""

    folder: Path
    codes: list[int] = field(default_factory=list)
    """The exit status of the supervisor of each run."""
    supervised: str = ""
    """What the supervisors printed."""
    stranger: tuple[int, str] = (0, "")
    """Exit status and log of a node that is not registered."""
    at_kill: list[dict[str, Any]] = field(default_factory=list)
    """The lines of the metrics when the server was killed."""
    kept_round: int = 0
    """The round of the checkpoint at that time."""
    left: dict[int, str] = field(default_factory=dict)
    """Processes that have not ended."""

    @property
    def out(self) -> Path:
        return self.folder / "run"

    @property
    def metrics(self) -> list[dict[str, Any]]:
        path = self.out / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def rejected(self) -> Counter[str]:
        """How often each client was rejected for each reason: '1: not finite'."""
        rejections = [line.get("rejections", {}) for line in self.metrics]
        return Counter(f"{who}: {why}" for line in rejections for why, clients in line.items() for who in clients)

    @property
    def journal(self) -> list[str]:
        path = self.folder / "journal"
        return path.read_text().splitlines() if path.exists() else []

    def checkpoint_round(self) -> int:
        """Return the round of the checkpoint; a server that is killed may leave only the one before the last."""
        names = ("checkpoint.safetensors", "checkpoint-before.safetensors")
        path = next(self.out / name for name in names if (self.out / name).exists())
        with safetensors.safe_open(path, "numpy") as file:
            return int(json.loads(file.metadata()["state"])["content"]["round"])

    def is_back(self) -> bool:
        """Return whether an update of the killed client is in the checkpoint."""
        merged = [line["round"] for line in self.metrics if KILLED in line["merged"]]
        return bool(merged) and self.checkpoint_round() >= merged[0]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    story = Story(tmp_path_factory.mktemp("deployment"))
    app = story.folder / "app"
    shutil.copytree(APP, app)
    shutil.copy(Path(__file__).parent.parent / "helpers" / "quick_client.py", app / "lesson_app" / "client_app.py")
    # Flower takes up to 60 s to notice a dead node; the server waits at least four times as long as an update takes.
    nodes = [{"journal": str(story.folder / "journal"), "slow-s": slow_s} for slow_s in (0.0, 0.0, 16.0)]
    with Federation(nodes, story.folder / "federation") as federation, ExitStack() as stack:
        supervisor = supervise(federation, story, app, MANY, 10.0)
        stack.callback(supervisor.kill)  # without a SuperLink, it would wait for one forever
        wait("the client to work that is to be killed", 300, lambda: f"begun {KILLED} 0" in story.journal)
        node = federation.processes[f"node{KILLED}"]
        os.killpg(node.pid, signal.SIGKILL)
        node.wait(60)
        federation.start_node(KILLED, federation.make_key("stranger"))
        code = federation.processes[f"node{KILLED}"].wait(300)
        story.stranger = code, (federation.folder / f"node{KILLED}.log").read_text()
        wait("its loss to be seen", 300, lambda: story.rejected[f"{KILLED}: node lost"] > 0)
        federation.start_node(KILLED)
        wait("an update of the client that came back", 300, story.is_back)
        kill_server(federation, story)
        story.codes.append(supervisor.wait(300))
        restore(story, back_up(story.out, story.folder / "backups", federation.folder / "state.db"))
        # With this deadline, updates are aggregated in the round in which they start, even on a busy machine.
        supervisor = supervise(federation, story, app, story.kept_round + MORE, 60.0)
        stack.callback(supervisor.kill)
        story.codes.append(supervisor.wait(600))
    story.supervised = (story.folder / "supervisor.log").read_text()
    story.left = federation.alive()
    return story


def supervise(
    federation: Federation, story: Story, app: Path, rounds: int, deadline_s: float
) -> "subprocess.Popen[bytes]":
    """Start the program that a service manager would start, which submits the run."""
    config = {
        "rounds": rounds,
        "deadline": deadline_s,
        "min-nodes": 3,
        "out": str(story.out),
        "resume": True,
    }
    path = story.folder / "run.toml"
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in config.items()))
    words: list[str | Path] = [sys.executable, APP.parent / "supervise_run.py"]
    words += [app, NAME, path, story.folder / "run-id"]
    with (story.folder / "supervisor.log").open("a") as log:
        return subprocess.Popen(words, env=federation.env, stdout=log, stderr=subprocess.STDOUT)


def kill_server(federation: Federation, story: Story) -> None:
    """End the process of the server app, and nothing else."""
    (server,) = [process for process, command in federation.alive().items() if "flwr-serverapp" in command]
    os.kill(server, signal.SIGKILL)
    wait("the server to be gone", 60, lambda: server not in federation.alive())
    story.at_kill, story.kept_round = story.metrics, story.checkpoint_round()


def restore(story: Story, backup: Path) -> None:
    """Replace the run by its backup, with a few rounds left; how many it has had depends on the machine."""
    shutil.rmtree(story.out)
    shutil.copytree(backup / "run", story.out)
    path = story.out / "config.toml"
    before = path.read_text()
    path.write_text(before.replace(f"rounds = {MANY}\n", f"rounds = {story.kept_round + MORE}\n"))
    assert path.read_text() != before


def test_unregistered_node_is_rejected(story: Story) -> None:
    code, log = story.stranger
    assert code == 1
    assert "Failed to activate SuperNode" in log


def test_killed_node_rejoins_under_its_key(story: Story) -> None:
    """Meanwhile, the others are aggregated."""
    assert f"sent {KILLED} 0" not in story.journal
    lost = next(line["round"] for line in story.metrics if KILLED in line.get("rejections", {}).get("node lost", []))
    assert any(line["merged"] for line in story.metrics[:lost])
    assert any(KILLED in line["merged"] for line in story.metrics[lost:])


def test_supervisor_reports_how_each_run_ended(story: Story) -> None:
    assert story.codes == [1, 0], story.supervised
    first, second = re.findall(r"^run (\d+): submitted$", story.supervised, re.MULTILINE)
    ended = re.findall(r"^run (\d+): (finished:\w+)$", story.supervised, re.MULTILINE)
    assert ended == [(first, "finished:failed")] * 2 + [(second, "finished:completed")]
    assert "report: " in story.supervised, "the log of the run"


def test_killed_server_resumes_from_a_backup_of_its_checkpoint(story: Story) -> None:
    lines = story.metrics
    assert 1 <= story.kept_round <= len(story.at_kill)
    assert lines[: story.kept_round] == story.at_kill[: story.kept_round]
    assert [line["round"] for line in lines] == list(range(1, story.kept_round + MORE + 1))
    assert all(before["time_s"] < after["time_s"] for before, after in pairwise(lines))
    assert any(line["uploads"] for line in lines[story.kept_round :])
    sent = [line for line in story.journal if line.startswith("sent")]
    assert sum(len(line["merged"]) for line in lines) <= len(sent), "nothing is aggregated twice"
    assert json.loads((story.out / "summary.json").read_text())["rounds"] == len(lines)


def test_recording_spans_both_runs(story: Story) -> None:
    found = read_recording(story.out / "flight.jsonl")
    assert len(found.names) == 3
    assert all(name.startswith("key-") for name in found.names), "nodes are registered by their keys"
    assert len(found.resumed_s) == 1


def test_no_process_is_left_behind(story: Story) -> None:
    assert story.left == {}

"""Real processes and real faults: nodes that die, lie, keep silent and come back, and a server that is killed.

One federation lives through all of it once, in `story`; the tests look at what it has left.
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

import numpy as np
import pytest
import safetensors
from back_up import back_up
from federation import APP, ASK_EVERY_S, NAME, Federation
from local_processes import wait

from lesson.clock.rejections import OF_CONTENT

pytestmark = pytest.mark.deployment
MANY, MORE = 1000, 3
"""Numbers of rounds: more than there is time for, and what is left for the resumed run."""
LIAR, SILENT, KILLED = 1, 2, 3
FAULTS = {"nan": "not finite", "shape": "wrong shape", "number": "wrong arrays", "error": "client error"}


@dataclass
class Story:
    """What happened."""

    folder: Path
    codes: list[int] = field(default_factory=list)
    """The exit status of the supervisor of each run."""
    told: str = ""
    """What the supervisors printed."""
    log: str = ""
    """The log of the first run."""
    stranger_code: int | None = None
    stranger_log: str = ""
    at_kill: list[dict[str, Any]] = field(default_factory=list)
    """The lines of the metrics when the server was killed."""
    kept_round: int = 0
    at_work: int = 0
    """The round of the checkpoint that was there then, and how many updates were in flight."""
    left: dict[int, str] = field(default_factory=dict)
    """Processes that are there after the end."""

    @property
    def rounds(self) -> int:
        """Of both runs together."""
        return self.kept_round + MORE

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

    def checkpoint(self) -> tuple[int, bool, int]:
        """Return the checkpoint's round, whether the killed client had uploaded by then, and how many clients are busy.

        A server that is killed while it replaces the checkpoint leaves only the one before it.
        """
        names = ("checkpoint.safetensors", "checkpoint-before.safetensors")
        if (path := next((self.out / name for name in names if (self.out / name).exists()), None)) is None:
            return 0, False, 0
        with safetensors.safe_open(path, "numpy") as file:
            seen_s, work = (file.get_tensor(f"loop.{name}") for name in ("world.seen_s", "ledger.latest.id"))
            back = bool(np.isfinite(seen_s[KILLED]).any())
            return json.loads(file.metadata()["state"])["round"], back, int(np.count_nonzero(work >= 0))

    def is_kept(self) -> bool:
        """Whether the checkpoint has an update of who came back, knows who was given up, and has somebody at work."""
        kept_round, back, at_work = self.checkpoint()
        given_up = [line["round"] for line in self.metrics if SILENT in line.get("rejections", {}).get("no reply", [])]
        return back and at_work > 0 and kept_round >= given_up[0]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    story = Story(tmp_path_factory.mktemp("deployment"))
    app = story.folder / "app"
    shutil.copytree(APP, app)
    shutil.copy(Path(__file__).parent.parent / "helpers" / "faulty_client.py", app / "lesson_app" / "client_app.py")
    nodes: list[dict[str, Any]] = [{"journal": str(story.folder / "journal"), "slow-s": 0.0} for _ in range(4)]
    nodes[LIAR]["faults"], nodes[SILENT]["faults"] = " ".join(FAULTS), "silent"
    nodes[KILLED]["slow-s"] = 12.0  # longer than a round, so that it is busy whenever a checkpoint is written
    with Federation(nodes, story.folder / "federation") as federation, ExitStack() as stack:
        supervisor = supervise(federation, story, app, MANY)
        stack.callback(supervisor.kill)  # without a SuperLink, it would wait for one forever
        wait("the client to work that is to be killed", 300, lambda: f"begun {KILLED} 0 good" in story.journal)
        kill_node(federation, KILLED)
        try_stranger(federation, story)
        wait("its loss to be seen", 300, lambda: story.rejected[f"{KILLED}: node lost"] > 0)
        federation.start_node(KILLED)
        wait("the silent client to be given up", 600, lambda: story.rejected[f"{SILENT}: no reply"] > 0)
        (story.folder / "speak").touch()
        wait("all faults to be rejected", 300, lambda: all(story.rejected[f"{LIAR}: {one}"] for one in FAULTS.values()))
        wait("an update of who came back", 300, story.is_kept)
        run = (story.folder / "run-id").read_text().strip()
        back = f"client {KILLED} connected"  # the log is sent in parts, and a kill loses the last one
        said = lambda: back in federation.log_of_run(run)  # noqa: E731
        wait("the reconnection to appear in the log", 120, said, every_s=ASK_EVERY_S)
        kill_server(federation, story)
        story.log = federation.log_of_run(run)
        story.codes.append(supervisor.wait(300))
        restore(story, back_up(story.out, story.folder / "backups", federation.folder / "state.db"))
        supervisor = supervise(federation, story, app, story.rounds)
        stack.callback(supervisor.kill)
        story.codes.append(supervisor.wait(600))
    story.told = (story.folder / "supervisor.log").read_text()
    story.left = federation.alive()
    return story


def supervise(federation: Federation, story: Story, app: Path, rounds: int) -> "subprocess.Popen[bytes]":
    """Start the program that a service manager would start, which submits the run."""
    config = {
        "rounds": rounds,
        "deadline": 10.0,
        "eval-every": 1.0,
        "min-nodes": 4,
        "out": str(story.out),
        "resume": True,
        "set": "run.checkpoint_every_s=1.0",
    }
    path = story.folder / "run.toml"
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in config.items()))
    words: list[str | Path] = [sys.executable, APP.parent / "flower_deployment" / "supervise_run.py"]
    words += [app, NAME, path, story.folder / "run-id"]
    with (story.folder / "supervisor.log").open("a") as log:
        return subprocess.Popen(words, env=federation.env, stdout=log, stderr=subprocess.STDOUT)


def kill_node(federation: Federation, number: int) -> None:
    """End a node with all that it has started, without a chance to say good-bye."""
    process = federation.processes[f"node{number}"]
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)


def try_stranger(federation: Federation, story: Story) -> None:
    """Start a node in the place of the killed one, with a key that nobody has registered."""
    federation.start_node(KILLED, federation.make_key("stranger"))
    story.stranger_code = federation.processes[f"node{KILLED}"].wait(300)
    story.stranger_log = (federation.folder / f"node{KILLED}.log").read_text()


def kill_server(federation: Federation, story: Story) -> None:
    """End the process that merges, and nothing else."""
    (server,) = [process for process, command in federation.alive().items() if "flwr-serverapp" in command]
    os.kill(server, signal.SIGKILL)
    wait("the server to be gone", 60, lambda: server not in federation.alive())
    story.at_kill, (story.kept_round, _, story.at_work) = story.metrics, story.checkpoint()


def restore(story: Story, backup: Path) -> None:
    """Put a backup in the place of the run, and have the run end a few rounds after its checkpoint.

    How many rounds it takes until here depends on the machine.
    """
    shutil.rmtree(story.out)
    shutil.copytree(backup / "run", story.out)
    path = story.out / "config.toml"
    before = path.read_text()
    path.write_text(before.replace(f"rounds = {MANY}\n", f"rounds = {story.rounds}\n"))
    assert path.read_text() != before


def test_an_unregistered_node_is_rejected(story: Story) -> None:
    assert story.stranger_code == 1
    assert "Failed to activate SuperNode" in story.stranger_log


@pytest.mark.parametrize(("fault", "reason"), FAULTS.items())
def test_what_cannot_be_merged_is_rejected_once_with_its_reason(story: Story, fault: str, reason: str) -> None:
    assert [line for line in story.journal if line.endswith(fault)]
    assert story.rejected[f"{LIAR}: {reason}"] == 1
    assert f"rejected update from client {LIAR}: {reason} (" in story.log


def test_who_never_answers_is_given_up_and_may_answer_later(story: Story) -> None:
    assert story.rejected[f"{SILENT}: no reply"] >= 1
    assert f"rejected update from client {SILENT}: no reply (" in story.log
    assert f"sent {SILENT} 1 good" in story.journal


def test_a_reply_that_had_been_given_up_is_not_merged(story: Story) -> None:
    assert f"sent {SILENT} 0 silent" in story.journal
    losses = [line["loss"] for line in story.metrics if "loss" in line]
    assert len(losses) > story.rounds / 2
    assert max(losses) < 10, "it had values of a million, which nothing was wrong with but their time"


def test_a_killed_node_is_lost_and_takes_part_again_under_its_key(story: Story) -> None:
    assert f"sent {KILLED} 0 good" not in story.journal
    assert story.rejected[f"{KILLED}: node lost"] >= 1
    assert f"client {KILLED} disconnected" in story.log
    assert f"client {KILLED} connected" in story.log


def test_the_run_continues_meanwhile(story: Story) -> None:
    lost = next(line["round"] for line in story.metrics if KILLED in line.get("rejections", {}).get("node lost", []))
    assert lost > 1, "rounds have passed while the server expected a lost node to reply"
    assert sum(line["uploads"] for line in story.metrics[:lost]) >= 1


def test_the_supervisor_tells_how_each_run_ended(story: Story) -> None:
    assert story.codes == [1, 0], story.told
    runs = re.findall(r"^run (\d+): submitted$", story.told, re.MULTILINE)
    assert len(runs) == 2
    ended = re.findall(r"^run (\d+): (finished:\w+)$", story.told, re.MULTILINE)
    assert ended == [(runs[0], "finished:failed")] * 2 + [(runs[1], "finished:completed")]
    assert "report: " in story.told, "the log of the run"


def test_a_killed_server_resumes_from_a_backup_of_its_checkpoint(story: Story) -> None:
    assert 1 <= story.kept_round <= len(story.at_kill)
    assert story.metrics[: story.kept_round] == story.at_kill[: story.kept_round]
    restarted = {line["round"]: len(line.get("rejections", {}).get("server restarted", [])) for line in story.metrics}
    assert {round: count for round, count in restarted.items() if count} == {story.kept_round + 1: story.at_work}
    assert story.at_work >= 1
    assert sum(line["uploads"] for line in story.metrics[story.kept_round :]) >= 1


def test_nothing_is_merged_twice(story: Story) -> None:
    lines = story.metrics
    assert [line["round"] for line in lines] == list(range(1, story.rounds + 1))
    assert all(before["time_s"] < after["time_s"] for before, after in pairwise(lines))
    sent = {line.removeprefix("sent ") for line in story.journal if line.startswith("sent") and line.endswith("good")}
    model_bytes = lines[0]["bytes_down"] // 4
    started, uploads, rejected = (
        sum(line.get(name, 0) for line in lines) for name in ("bytes_down", "uploads", "rejected")
    )
    unfit = sum(count for told, count in story.rejected.items() if told.partition(": ")[2] in OF_CONTENT)
    assert unfit == len(FAULTS) - 1, "the client that raised has sent nothing"
    assert uploads <= len(sent) + unfit
    assert 0 <= started // model_bytes - uploads - (rejected - unfit) <= 4, "the rest is still at work"


def test_the_summary_counts_what_was_rejected(story: Story) -> None:
    summary = json.loads((story.out / "summary.json").read_text())
    assert summary["rounds"] == story.rounds
    assert summary["rejected"] == story.rejected.total() >= len(FAULTS) + 3
    assert (story.out / "checkpoint.safetensors").exists(), "the run can be continued with more rounds"


def test_no_process_is_left(story: Story) -> None:
    assert story.left == {}

"""Built-in strategies on small fleets whose clients leave, rejoin and drop out; custom ones with invalid answers."""

import random
from collections.abc import Callable
from pathlib import Path

from lesson.strategies import STRATEGIES
from tests.stress.command import GIB, Limits, call
from tests.stress.trial import Facts, Trial

LIMITS = Limits(seconds=200.0, cpu_s=60, memory_bytes=8 * GIB)
SMALL = (
    "run.device=cpu",
    "run.trainer=reference",
    "run.eval_every_s=1e9",
    "data.samples_per_client=40",
    "training.batch_size=5",
)
CUSTOM = """import sys

from lesson.strategies.base import AllOf, Merge, RoundPlan, Stateless, average


class Mine(Stateless):
    def open_round(self, view, rng):
        starts = view.idle.nonzero()[0]
        return {plan}

    def merge(self, view, arrived):
        return {merge}
"""
SHORT = ("lesson", "lesson-memory", "fedat", "fedbuff")
PLAN, MERGE = "RoundPlan(starts, AllOf(starts))", "average(view, arrived)"
ANSWERS: dict[str, tuple[str, str, int, str]] = {
    "lists": ("RoundPlan(starts.tolist(), AllOf([*starts]))", "Merge([*arrived.id], [0.0] * len(arrived))", 0, ""),
    "exits": ("sys.exit(0)", MERGE, 3, "mine:Mine: SystemExit: 0 (mine.py, line 9)"),
    "no plan": ("None", MERGE, 3, "round 1: Mine: open_round must return a RoundPlan, got None"),
    "a mask": ("RoundPlan(view.idle, AllOf(starts))", MERGE, 3, "round 1: Mine: RoundPlan.starts must be"),
    "a client too many": (
        "RoundPlan([999], AllOf(starts))",
        MERGE,
        3,
        "RoundPlan.starts must be ids of clients",
    ),
    "no merge": (PLAN, "arrived", 3, "round 1: Mine: merge must return a Merge"),
    "drops by place": (PLAN, "Merge(arrived.id, arrived.id * 0.0, [])", 3, "TypeError: Merge.__init__() takes"),
    "a single weight": (PLAN, "Merge(arrived.id, 0.1)", 3, "round 1: Mine: Merge.weights must be"),
}


def trials(_: Path, short: bool) -> list[Trial]:
    """Return trials of each strategy on twenty fleets, and of custom strategies with `ANSWERS`.

    If `short`, there is one fleet for each kind of state that a strategy keeps between rounds, and three `ANSWERS`.
    """
    fleets = [
        Trial("strategies", f"{name} {number}", _comes_and_goes(name))
        for name in (SHORT if short else STRATEGIES)
        for number in range(1 if short else 20)
    ]
    answers = {case: ANSWERS[case] for case in ("lists", "exits", "no merge")} if short else ANSWERS
    return [*fleets, *(Trial("custom strategies", case, _answers(*told)) for case, told in answers.items())]


def _comes_and_goes(name: str) -> Callable[[Path, random.Random], Facts]:
    def do(folder: Path, rng: random.Random) -> Facts:
        num_clients = rng.randint(1, 9)
        (folder / "presence.csv").write_text("client,from_s,to_s\n" + "".join(_presence(num_clients, rng)))
        changes = [
            f"fleet.num_clients={num_clients}",
            "fleet.presence=presence.csv",
            f"faults.disconnect_before={rng.choice([0.0, 0.2])}",
            f"faults.disconnect_during={rng.choice([0.2, 0.5])}",
            f"faults.offline_s={rng.uniform(1, 60):.1f}",
            f"faults.detection_delay_s={rng.uniform(0, 100):.1f}",
        ]
        if rng.random() < 0.5:
            (folder / "trace.csv").write_text("client,round,compute_s,upload_s\n" + "".join(_trace(num_clients, rng)))
            changes.append("fleet.trace=trace.csv")
        argv = ["run", "--strategy", name, "--rounds", "30", "--out", "runs", *_set(*SMALL, *changes)]
        outcome = call(argv, folder, LIMITS, real=False).check(0, 3)
        return {f"status {outcome.status}": 1}

    return do


def _presence(num_clients: int, rng: random.Random) -> list[str]:
    """Return rows of presence intervals within the first 600 s; after that, all clients are present."""
    rows = []
    for client in range(num_clients):
        edges_s = sorted(rng.uniform(0, 600) for _ in range(2 * rng.randint(0, 4)))
        rows += [f"{client},{begin_s},{end_s}\n" for begin_s, end_s in zip(edges_s[::2], edges_s[1::2], strict=True)]
        rows.append(f"{client},600,inf\n")
    return rows


def _trace(num_clients: int, rng: random.Random) -> list[str]:
    """Return rows of a trace; the compute time is sometimes 0, but never in a client's first row."""
    return [
        f"{client},{number},{rng.choice([0.0, rng.uniform(0.1, 30)]) if number > 1 else 5.0},{rng.uniform(0.1, 30)}\n"
        for client in range(num_clients)
        for number in range(1, rng.randint(2, 5))
    ]


def _answers(plan: str, merge: str, status: int, told: str) -> Callable[[Path, random.Random], None]:
    def do(folder: Path, _: random.Random) -> None:
        (folder / "mine.py").write_text(CUSTOM.format(plan=plan, merge=merge))
        argv = ["run", "--strategy", "mine:Mine", "--rounds", "3", "--out", "runs"]
        outcome = call([*argv, *_set(*SMALL, "fleet.num_clients=4")], folder, LIMITS, real=False).check(
            status, custom=True
        )
        assert told in outcome.err, f"must say '{told}', says '{outcome.err}'"

    return do


def _set(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--set", change)]

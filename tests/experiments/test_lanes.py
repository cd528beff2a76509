"""Runs that one process trains together: on the CPU here, on a GPU if there is one."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from helpers.small_tasks import TinyNet, tiny_task
from lesson import Settings
from lesson.experiments.engines import InProcessEngine, Line, LocalEngine

LANES = LocalEngine(2, task=tiny_task(), num_lanes=3, lanes_on_cpu=True)
STRATEGIES = """
import os
from pathlib import Path
from lesson import FedBuff


class Once(FedBuff):
    def open_round(self, view, rng):
        if view.round == 280 and not Path("once").exists():
            Path("once").touch()
            os.kill(os.getpid(), 9)
        return super().open_round(view, rng)


class Raises(FedBuff):
    def open_round(self, view, rng):
        if view.round == 9:
            raise ZeroDivisionError("nobody there")
        return super().open_round(view, rng)
"""


def executed(folder: Path, plan: Mapping[str, Settings], engine: Any = LANES) -> dict[str, Line]:
    """Execute runs and return the last event of each."""
    ends = dict[str, Line]()

    def hear(path: Path, line: Line) -> None:
        if "round" not in line:
            ends[path.name] = line

    engine.run({folder / name: one for name, one in plan.items()}, hear)
    return ends


def small(strategy: str, device: str, **sections: dict[str, Any]) -> Settings:
    """Return the settings of a short run on the tiny task."""
    given = {name: sections.get(name, {}) for name in ("training", "run")}
    others = {name: values for name, values in sections.items() if name not in given}
    return Settings(
        fleet={"num_clients": 6},
        data={"split": "iid"},
        strategy={"name": strategy},
        training={"batch_size": 5} | given["training"],
        run={"rounds": 12, "eval_every_s": 100.0, "device": device} | given["run"],
        **others,
    )


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_lanes_agree_with_runs_on_their_own_whatever_their_number(tmp_path: Path, device: str) -> None:
    """Strategies with tiers, groups, a buffer, server optimizers, signals and several local steps."""
    sections: dict[str, dict[str, Any]] = {
        "lesson": {"run": {"client_scores_every_s": 100.0}},
        "fedbuff": {"server": {"optimizer": "adam"}, "run": {"seed": 1}},
        "fedat": {"run": {"seed": 2}},
        "ca2fl": {"run": {"rounds": 30}},
        "fadas": {"run": {"rounds": 30}},
        "oort": {},
        "tifl": {},
        "semisync-steps": {"training": {"momentum": 0.5}},
        "fedavg": {"training": {"local_epochs": 2}},
    }
    plan = {name: small(name, device, **own) for name, own in sections.items()}
    ends = executed(tmp_path / "lanes", plan)
    assert {name: end.get("error") for name, end in ends.items()} == dict.fromkeys(plan)
    executed(tmp_path / "one", plan, replace(LANES, num_lanes=1))
    executed(tmp_path / "alone", plan, InProcessEngine(task=tiny_task()))
    for name in plan:
        together, one, alone = (tmp_path / how / name for how in ("lanes", "one", "alone"))
        assert (together / "metrics.jsonl").read_bytes() == (one / "metrics.jsonl").read_bytes()
        assert (together / "clients.json").read_bytes() == (one / "clients.json").read_bytes()
        for mine, theirs in zip(lines(together), lines(alone), strict=True):
            assert mine["merged"] == theirs["merged"]
            assert mine.get("loss") == (pytest.approx(theirs["loss"], rel=1e-3) if "loss" in theirs else None)


@pytest.mark.slow
def test_lanes_do_not_disturb_each_other(tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One lane is killed and resumed, one raises, one diverges, and one needs the models of clients."""
    (tmp_path / "odd.py").write_text(STRATEGIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    long = {"rounds": 300, "checkpoint_every_s": 1e-9}
    plan = {
        "once": small("odd:Once", device, run=long),
        "raises": small("odd:Raises", device, run=long),
        "diverges": small("fedavg", device, training={"learning_rate": 1e30, "lr_cap": 1e30}),
        "guarded": small("fedavg", device, guards={"norm_limit": 100.0}),
        "fedbuff": small("fedbuff", device, run=long),
    }
    ends = executed(tmp_path / "lanes", plan)
    kinds = {name: end.get("kind", "done") for name, end in ends.items()}
    assert kinds == {
        "once": "done",
        "raises": "ZeroDivisionError",
        "diverges": "DivergedError",
        "guarded": "done",
        "fedbuff": "done",
    }
    undisturbed = {name: plan[name] for name in ("fedbuff", "once")}
    executed(tmp_path / "again", undisturbed, replace(LANES, num_lanes=1))
    for name in undisturbed:
        found, wanted = (tmp_path / how / name / "metrics.jsonl" for how in ("lanes", "again"))
        assert found.read_bytes() == wanted.read_bytes()


class FrozenNet(TinyNet):
    """Only the last layer is trained; the first one depends on the seed."""

    def __init__(self) -> None:
        super().__init__()
        self.conv.requires_grad_(False)


@pytest.mark.slow
def test_frozen_layers_are_those_of_the_seed(tmp_path: Path, device: str) -> None:
    task = replace(tiny_task(), model=FrozenNet)
    plan = {f"{seed}": small("fedavg", device, run={"seed": seed}) for seed in (0, 1)}
    executed(tmp_path / "lanes", plan, replace(LANES, task=task))
    executed(tmp_path / "alone", plan, InProcessEngine(task=task))
    for name in plan:
        mine, theirs = (lines(tmp_path / how / name)[-1] for how in ("lanes", "alone"))
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-3)


@pytest.mark.slow
def test_metrics_that_fail_stop_only_their_run(tmp_path: Path, device: str) -> None:
    """The rounds before are written, and the error has the traceback of the metrics, as in a run on its own."""

    def loudness(outputs: Tensor, _: Tensor) -> float:
        if outputs.abs().max() > 30:
            raise ZeroDivisionError("too loud")
        return float(outputs.mean())

    engine = replace(LANES, task=replace(tiny_task(), metrics=loudness, metric="loudness"))
    plan = {
        "quiet": small("fedavg", device),
        "loud": small("fedavg", device, training={"learning_rate": 100.0, "lr_cap": 100.0}),
    }
    together = executed(tmp_path / "lanes", plan, engine)
    alone = executed(tmp_path / "alone", plan, InProcessEngine(task=engine.task))
    assert "done" in together["quiet"]
    assert together["loud"]["error"] == alone["loud"]["error"]
    assert (together["loud"]["kind"], "too loud" in together["loud"]["traceback"]) == ("RunStoppedError", True)
    assert len(lines(tmp_path / "lanes" / "loud")) == len(lines(tmp_path / "alone" / "loud")) < 12

"""On the virtual clock, a run on clients of Flower has the bits of a simulated one: also after it was killed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from flwr.app import Context, RecordDict

from helpers.flower_runs import KilledError, kill_after
from helpers.local_grid import MakeGrid
from lesson.core.errors import InputError
from lesson.flower import make_client_app, make_server_app, serve
from lesson.flower.config import check_config, settings_of
from lesson.runs.execute import execute

pytestmark = pytest.mark.usefixtures("few_images")
CLIENTS = 5
CONFIG: dict[str, Any] = {
    "deadline": 15,
    "beta": 0.5,
    "clock": "virtual",
    "rounds": 6,
    "eval-every": 1e9,
    "set": "training.batch_size=4",
}
"""Few rounds, with several tiers."""


def simulated(config: dict[str, Any], out: Path) -> Path:
    """The folder of the same run without Flower, by the trainer that real clients use."""
    settings = settings_of(check_config(config), CLIENTS)
    execute(settings.model_copy(update={"run": settings.run.model_copy(update={"trainer": "reference"})}), out)
    return out


def served(make_grid: MakeGrid, config: dict[str, Any], out: Path) -> Path:
    """The folder of a run on clients in this process."""
    config = config | {"out": str(out)}
    serve(make_grid(make_client_app(), CLIENTS, config), context(config))
    return out


def context(config: dict[str, Any]) -> Context:
    return Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config)


def same(one: Path, other: Path) -> None:
    """The same lines and the same model, to the bit."""
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.parametrize(
    ("strategy", "changes"),
    [
        ("lesson", ""),
        ("fedavg", "training.local_steps=2"),
        ("fedat", "strategy.num_tiers=2"),
        ("lesson-adaptive", ""),
        ("fadas", "strategy.buffer_size=2"),
        ("fedcs-greedy", "training.weighting=samples"),
        (
            "semisync-steps",
            "strategy.period_factor=1.0 training.local_epochs=1 training.batch_size=60 data.split=iid",
        ),
        ("tifl", "strategy.num_tiers=2 strategy.interval=3"),
        ("oort", "strategy.clients_per_round=2"),
        ("refl", "strategy.clients_per_round=2 strategy.hold_off=0"),
    ],
)
def test_flower_gives_the_bits_of_the_simulator(
    make_grid: MakeGrid, tmp_path: Path, strategy: str, changes: str
) -> None:
    config = CONFIG | {"strategy": strategy, "set": f"{CONFIG['set']} {changes}"}
    same(served(make_grid, config, tmp_path / "flower"), simulated(config, tmp_path / "simulated"))
    assert (tmp_path / "flower" / "latencies.csv").read_text().count("\n") == 1 + CLIENTS


def test_what_a_client_sums_itself_is_the_same_but_for_rounding(make_grid: MakeGrid, tmp_path: Path) -> None:
    """A client sends the mean of its minibatches, whose terms the simulator adds up with those of others."""
    changes = "server.optimizer=adam server.learning_rate=0.01"
    config = CONFIG | {"strategy": "lesson-filled", "rounds": 5, "set": f"{CONFIG['set']} {changes}"}
    flower, other = served(make_grid, config, tmp_path / "flower"), simulated(config, tmp_path / "simulated")
    models = [safetensors.numpy.load_file(folder / "model.safetensors") for folder in (flower, other)]
    assert models[0].keys() == models[1].keys()
    for name in models[0]:
        np.testing.assert_allclose(models[0][name], models[1][name], rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize(
    "guards", ["guards.norm=reject guards.aggregation=median", "guards.norm=reject guards.aggregation=trimmed-mean"]
)
def test_faults_and_guards_give_the_bits_of_the_simulator(make_grid: MakeGrid, tmp_path: Path, guards: str) -> None:
    """Clients of Flower send what the simulator's would, faults included; its notes say more."""
    faults = "disconnect_during=0.1 corrupting_clients=0.6 scaled=0.3 flipped=0.3"
    changes = " ".join(f"faults.{fault}" for fault in faults.split()) + f" {guards} guards.exclude_after_rejections=1"
    config = CONFIG | {"rounds": 14, "set": f"{CONFIG['set']} {changes}"}
    flower, other = served(make_grid, config, tmp_path / "flower"), simulated(config, tmp_path / "simulated")
    lines = [list(map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())) for folder in (flower, other)]
    notes = [[line.pop("note", "") for line in some] for some in lines]
    assert lines[0] == lines[1]
    assert any("rejections" in line for line in lines[0])
    assert any(line["lost"] for line in lines[0])
    assert all(note in longer for longer, note in zip(*notes, strict=True))
    assert any(note.startswith("excluded") for note in notes[1])
    models = [(folder / "model.safetensors").read_bytes() for folder in (flower, other)]
    assert models[0] == models[1]


def test_values_that_are_no_numbers_are_rejected_by_both(make_grid: MakeGrid, tmp_path: Path) -> None:
    """By Flower's server when they arrive, by the simulator's when they are merged: for FedAvg that is the same."""
    changes = "faults.corrupting_clients=0.4 faults.nan=0.5 faults.infinity=0.2 strategy.fraction=1.0"
    config = CONFIG | {"strategy": "fedavg", "rounds": 6, "set": f"{CONFIG['set']} {changes}"}
    flower, other = served(make_grid, config, tmp_path / "flower"), simulated(config, tmp_path / "simulated")
    told = [json.loads((folder / "summary.json").read_text()) for folder in (flower, other)]
    assert told[0]["rejected_by"] == told[1]["rejected_by"]
    assert told[0]["rejected_by"]["not finite"] > 0
    assert told[0]["uploads"] == told[1]["uploads"]
    models = [safetensors.numpy.load_file(folder / "model.safetensors") for folder in (flower, other)]
    for name in models[0]:
        np.testing.assert_allclose(models[0][name], models[1][name], rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("changes", "clock", "message"),
    [
        (
            "faults.disconnect_before=0.1",
            "wall",
            "faults.disconnect_before and faults.disconnect_during must be 0 on the wall clock",
        ),
    ],
)
def test_faults_that_flower_cannot_have(make_grid: MakeGrid, changes: str, clock: str, message: str) -> None:
    config = CONFIG | {"clock": clock, "set": changes}
    with pytest.raises(InputError, match=message):
        serve(make_grid(make_client_app(), CLIENTS, config), context(config))


@pytest.mark.parametrize(
    ("strategy", "changes"),
    [
        ("lesson", ""),
    ],
)
def test_a_killed_run_resumes_bit_identically(make_grid: MakeGrid, tmp_path: Path, strategy: str, changes: str) -> None:
    """Checkpoints after every round; killed among the messages of a later one. The server app itself resumes it."""
    config = CONFIG | {"strategy": strategy, "set": f"{CONFIG['set']} run.checkpoint_every_s=0.001 {changes}"}
    out = tmp_path / "flower"
    grid = make_grid(make_client_app(), CLIENTS, config)
    kill_after(grid, CLIENTS + 9)  # five questions first
    with pytest.raises(KilledError):
        serve(grid, context(config | {"out": str(out)}))
    assert (out / "checkpoint.safetensors").exists()
    begun = (out / "metrics.jsonl").read_text().count("\n")
    assert 1 <= begun < CONFIG["rounds"]
    again = config | {"out": str(out), "resume": True}
    make_server_app()(grid=make_grid(make_client_app(), CLIENTS, again), context=context(again))
    same(out, simulated(config, tmp_path / "simulated"))

"""The apps that docs/how-to/flower.md shows, executed together."""

import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from helpers.code_blocks import ROOT, blocks
from helpers.local_grid import MakeGrid
from helpers.small_tasks import tiny_task


def test_the_documented_app_trains(make_grid: MakeGrid) -> None:
    page = [block.text for block in blocks(ROOT / "docs" / "how-to" / "flower.md") if block.kind == "python"]
    (server,) = [text for text in page if "was: FedAvg()" in text]
    (step_size,) = [text for text in page if text.startswith("lr = ")]
    client, lock, rates, losses = ClientApp(), threading.Lock(), list[float](), list[float]()
    inputs = torch.tensor(np.random.default_rng(0).normal(size=(20, 2)), dtype=torch.float32)

    @client.train()
    def train(message: Message, context: Context) -> Message:
        names: dict[str, Any] = {"message": message}
        exec(step_size, names)
        net = nn.Linear(2, 1)
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        net(inputs).square().mean().backward()
        with lock, torch.no_grad():
            rates.append(names["lr"])
            for parameter in net.parameters():
                parameter -= names["lr"] * parameter.grad
        metrics = MetricRecord({"train_loss": 0.0, "num-examples": 20})
        return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
        net = nn.Linear(2, 1)
        net.load_state_dict(arrays.to_torch_state_dict())
        losses.append(float(net(inputs).square().mean().detach()))
        return MetricRecord({"loss": losses[-1]})

    names: dict[str, Any] = {"Net": lambda: nn.Linear(2, 1), "evaluate": evaluate}
    exec(server, names)
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={})
    names["app"](make_grid(client, 2), context)
    assert len(rates) == 2 * 20
    assert set(rates) == {0.01}, "both clients are in tier 1"
    assert losses[-1] < losses[0]


def test_the_documented_app_of_a_task_trains(
    make_grid: MakeGrid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = [block.text for block in blocks(ROOT / "docs" / "how-to" / "flower.md") if block.kind == "python"]
    mine = ModuleType("mine")
    vars(mine)["make_task"] = tiny_task
    monkeypatch.setitem(sys.modules, "mine", mine)
    client, server = dict[str, Any](), dict[str, Any]()
    for names, function in ((client, "make_client_app(task"), (server, "make_server_app(task")):
        (code,) = [text for text in page if function in text]
        exec(code, names)
    chosen = "data.split=iid training.batch_size=4"
    config = {"clock": "virtual", "deadline": 20.0, "rounds": 3, "set": chosen, "out": str(tmp_path / "run")}
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config)
    server["app"](make_grid(client["app"], 3, config), context)
    assert (tmp_path / "run" / "summary.json").exists()

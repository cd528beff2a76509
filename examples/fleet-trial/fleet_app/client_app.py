"""The client: trains the model on its own images, as fast or as slowly as its device."""

import math
import random
import time
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fleet_app.task import load_data
from fleet_app.task import train as train_model

NOISE, DRIFT, PERIOD_S = 0.08, 0.1, 600.0
"""A slow device takes longer by random factors and in phases: amplitudes as shares, and the length of a phase."""

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model and reply with it."""
    node, config = context.node_config, message.content.config_records["config"]
    partition = int(node["partition-id"])
    images, labels = load_data(Path(str(node["data"])), "train", partition, int(node["num-partitions"]))
    model: Any = message.content.array_records["arrays"].to_numpy_ndarrays()
    num_steps = int(context.run_config["local-steps"])
    model, loss = train_model(model, images, labels, num_steps, float(config["lr"]))  # type: ignore[arg-type]
    time.sleep(float(node["slow-s"]) * slowness(partition, time.time()))
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(images)})
    return Message(RecordDict({"arrays": ArrayRecord(model), "metrics": metrics}), reply_to=message)


def slowness(partition: int, now_s: float) -> float:
    """Return how much longer than usual a simulated slow device takes at a moment, as a factor around 1."""
    phase = 2 * math.pi * (now_s / PERIOD_S + partition / 6)
    return (1 + DRIFT * math.sin(phase)) * math.exp(NOISE * random.gauss(0, 1))

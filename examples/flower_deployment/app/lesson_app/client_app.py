"""The client: trains and evaluates the model on its share of the data."""

import time
from typing import Any

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from lesson.flower import TaskClient, compress_uploads, report_times
from lesson_app.task import settings_of

app = ClientApp(mods=[report_times, compress_uploads])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model and reply with it."""
    client, content = client_of(context), message.content
    arrays = client.train(content.array_records["arrays"], content.config_records["config"])
    time.sleep(float(context.node_config.get("slow-s", 0.0)))  # simulates a slow device
    metrics = MetricRecord({"num-examples": client.num_samples})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the received model and reply with its loss and accuracy."""
    client = client_of(context)
    scores = client.evaluate(message.content.array_records["arrays"])
    metrics = MetricRecord({"num-examples": client.num_samples, **scores})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def client_of(context: Context) -> TaskClient:
    """Return the client that holds the partition of this node."""
    node: Any = context.node_config
    return TaskClient(settings_of(context.run_config, node["num-partitions"]), node["partition-id"])

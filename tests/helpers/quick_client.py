"""A client for a copy of the example's app; tests/flower/test_deployment.py uses it.

It returns the model unchanged: processes that do not train need not import torch and start in half the time. An update
takes `slow-s` seconds, and `journal` is a file that gets a line for every update begun and sent.
"""

import time
from pathlib import Path

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from lesson.flower.profile import answers_profile

NUM_SAMPLES = 600
app = ClientApp()


def measure(context: Context, model: ArrayRecord) -> tuple[list[float], int]:
    """Return how long an update takes, and the number of samples."""
    slow_s = float(context.node_config["slow-s"])
    time.sleep(slow_s)
    return [slow_s], NUM_SAMPLES


answers_profile(app, measure)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Reply with the model that was sent."""
    update = message.content.config_records["config"]["update"]
    with Path(str(context.node_config["journal"])).open("a", buffering=1) as journal:
        journal.write(f"begun {context.node_config['partition-id']} {update}\n")
        time.sleep(float(context.node_config["slow-s"]))
        (model,) = message.content.array_records.values()
        content = {"arrays": model, "metrics": MetricRecord({"num-examples": NUM_SAMPLES})}
        reply = Message(RecordDict(content), reply_to=message)
        journal.write(f"sent {context.node_config['partition-id']} {update}\n")
    return reply

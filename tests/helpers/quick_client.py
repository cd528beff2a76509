"""A client for a copy of the app in examples/flower_deployment; tests/flower/test_deployment.py uses it.

It returns the model unchanged: processes that do not train need not import torch and start in half the time. An update
takes `slow-s` seconds, and `journal` is a file that gets a line for every update begun and sent.
"""

import time
from pathlib import Path

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Reply with the model that was sent."""
    update = message.content.config_records["config"]["update"]
    with Path(str(context.node_config["journal"])).open("a", buffering=1) as journal:
        journal.write(f"begun {context.node_config['partition-id']} {update}\n")
        time.sleep(float(context.node_config["slow-s"]))
        content = {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 600})}
        reply = Message(RecordDict(content), reply_to=message)
        journal.write(f"sent {context.node_config['partition-id']} {update}\n")
    return reply


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Reply without an evaluation."""
    return Message(RecordDict({"metrics": MetricRecord({"num-examples": 600})}), reply_to=message)

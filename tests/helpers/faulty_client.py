"""A client with injected faults; tests/flower/test_deployment.py puts it into a copy of the example's app.

The node config selects the faults: `faults` has one word per update of the client, starting with the first, and later
updates are "good". `slow-s` is how long an update takes. `journal` is a file that gets a line for every update begun
and sent. A good update returns the model unchanged: processes that do not train need not import torch and start in half
the time. tests/flower/test_simulation.py covers the example's own client, which does train.
"""

import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from lesson.flower.profile import answers_profile

NUM_SAMPLES = 600
WAIT_S = 600.0
app = ClientApp()


def measure(context: Context, model: ArrayRecord) -> tuple[list[float], int]:
    """Return how long an update takes, and the number of samples."""
    slow_s = float(context.node_config["slow-s"])
    time.sleep(slow_s)
    return [slow_s], NUM_SAMPLES


answers_profile(app, measure)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Reply with the model that was sent, corrupted by the fault of this update."""
    node, journal = context.node_config, Path(str(context.node_config["journal"]))
    update = int(message.content.config_records["config"]["update"])  # type: ignore[arg-type]
    fault = dict(enumerate(str(node.get("faults", "")).split())).get(update, "good")
    name = f"{node['partition-id']} {update} {fault}"
    _note(journal, f"begun {name}")
    time.sleep(float(node["slow-s"]))
    (model,) = message.content.array_records.values()
    arrays = _corrupted(dict(model), fault, journal)
    metrics = MetricRecord({"num-examples": NUM_SAMPLES})
    reply = Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)
    _note(journal, f"sent {name}")
    return reply


def _corrupted(arrays: dict[str, Array], fault: str, journal: Path) -> dict[str, Array]:
    first = next(iter(arrays))
    values = arrays[first].numpy()
    match fault:
        case "nan":
            arrays[first] = Array(np.full_like(values, np.nan))
        case "shape":
            arrays[first] = Array(values[..., :-1].copy())
        case "number":
            del arrays[first]
        case "error":
            raise RuntimeError("the client says no")
        case "silent":
            until_s = time.monotonic() + WAIT_S
            while not journal.with_name("speak").exists() and time.monotonic() < until_s:
                time.sleep(0.2)
            arrays[first] = Array(np.full_like(values, 1e6))
    return arrays


def _note(journal: Path, line: str) -> None:
    with journal.open("a") as file:
        file.write(f"{line}\n")

"""The example's client with injected faults; tests/flower/test_deployment.py puts it into a copy of the app.

The node config selects the faults: `faults` has one word per update of the client, starting with the first, and later
updates are "good". `journal` is a file that gets a line for every update begun and sent.
"""

import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from lesson.flower import make_client_app

WAIT_S = 600.0


class FaultyApp(ClientApp):
    """Replies as the example does, with faults in the reply."""

    def __call__(self, message: Message, context: Context) -> Message:
        good = make_client_app()
        if message.metadata.message_type != "train":
            return good(message, context)
        config, journal = context.node_config, Path(str(context.node_config["journal"]))
        update = int(message.content.config_records["config"]["update"])  # type: ignore[arg-type]
        fault = dict(enumerate(str(config.get("faults", "")).split())).get(update, "good")
        name = f"{config['partition-id']} {update} {fault}"
        _note(journal, f"begun {name}")
        reply = _corrupted(good(message, context), fault, journal)
        _note(journal, f"sent {name}")
        return reply


def _corrupted(reply: Message, fault: str, journal: Path) -> Message:
    arrays = dict(reply.content.array_records["arrays"])
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
    reply.content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": reply.content.metric_records["metrics"]})
    return reply


def _note(journal: Path, line: str) -> None:
    with journal.open("a") as file:
        file.write(f"{line}\n")


app = FaultyApp()

"""Who the nodes of a federation are and how long they take: a question each answers before training begins.

The question carries the model and the answer sends it back: what the way there and back takes, Flower's own work and
the start of the client included, is measured with what will travel. The client tries its usual local work meanwhile
and says how long it took.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from lesson.core.validation import MAX_SAMPLES
from lesson.flower.replies import Inbox, read_metrics, scalars
from lesson.settings.sections import MAX_CLIENTS

KIND = "profile"
TYPE = f"query.{KIND}"
POLL_S = 0.1
Measure = Callable[[Context, ArrayRecord], tuple[Sequence[float], int]]
"""Seconds of the usual local work on this client, from a model, each time it was tried; how many samples it has."""


@dataclass(frozen=True)
class Profile:
    """What a node says of itself, and what was measured on the way."""

    node: int
    client: int
    """Its number, from 0: the partition of the data that it has."""
    num_clients: int
    num_samples: int
    compute_s: float
    upload_s: float
    """All that is not computing: sending there and back, and starting the client."""

    @property
    def latency_s(self) -> float:
        """From sending a model to having the update."""
        return self.compute_s + self.upload_s


@dataclass(frozen=True)
class Profiler:
    """Asks nodes who they are."""

    model: ArrayRecord
    patience_s: float = 120.0

    def question(self, node: int) -> Message:
        """What to ask a node."""
        return Message(RecordDict({"arrays": self.model}), node, TYPE, ttl=self.patience_s)

    def read(self, node: int, answer: Message | Exception, took_s: float) -> Profile | None:
        """What a node has answered after so many seconds; None if that is no usable answer."""
        try:
            if isinstance(answer, Exception) or answer.has_error():
                return None
            numbers = scalars(read_metrics(answer.content))
            client, num_clients, num_samples = (
                int(numbers[name]) for name in ("client", "num-clients", "num-examples")
            )
            compute_s, busy_s = numbers["compute-s"], numbers["busy-s"]
        except Exception:  # whatever a node sends, it has given no answer
            return None
        if not (0 <= client < num_clients <= MAX_CLIENTS and 0 < num_samples <= MAX_SAMPLES):
            return None
        if not 0 <= compute_s <= busy_s:
            return None
        return Profile(node, client, num_clients, num_samples, compute_s, max(took_s - busy_s, 1e-3))

    def ask(
        self, grid: Grid, nodes: Iterable[int], answered: Callable[[Profile], None] = lambda _: None
    ) -> dict[int, Profile | None]:
        """What these nodes answer, all asked at once; None for one that does not know the question or is silent."""
        profiles: dict[int, Profile | None] = {}
        inbox, waiting = Inbox(grid), dict[str, tuple[int, float]]()
        for node in nodes:
            profiles[node] = None
            begun_s = time.monotonic()
            ids = list(grid.push_messages([self.question(node)]))
            waiting |= {number: (node, begun_s) for number in ids if number}
        until_s = time.monotonic() + self.patience_s
        while waiting and time.monotonic() < until_s:
            for number, answer in inbox.pull(list(waiting)):
                node, begun_s = waiting.pop(number)
                profiles[node] = profile = self.read(node, answer, time.monotonic() - begun_s)
                if profile is not None:
                    answered(profile)
            time.sleep(POLL_S if waiting else 0)
        return profiles


def by_registration(grid: Grid) -> list[int]:
    """The nodes that are connected, the one registered first in front; in Flower's simulation by partition."""
    return [node.node_id for node in sorted(grid.get_nodes(), key=lambda node: (node.registered_at, node.node_id))]


def choose_clients(profiles: Sequence[Profile]) -> tuple[dict[int, Profile], dict[int, str]]:
    """The profiles of the nodes that take part, by client, and what is wrong with the others, by node.

    A node says itself which partition it has, and the server cannot tell who is right when two nodes contradict each
    other. So `profiles` come in the order of registration, and the first to claim a partition has it: a node that comes
    later cannot displace one that was there, and node ids, which are drawn anew with every registration, do not count.
    Leaving out both would let one node remove any other. The number of partitions is the one that most nodes report; if
    two numbers tie, the one reported first.
    """
    counts = Counter(profile.num_clients for profile in profiles)
    num_clients = max(counts, key=lambda number: counts[number], default=0)  # the first of equals: dicts keep the order
    chosen, wrong = dict[int, Profile](), dict[int, str]()
    for profile in profiles:
        if profile.num_clients != num_clients:
            wrong[profile.node] = f"reports {profile.num_clients} partitions, most nodes report {num_clients}"
        elif profile.client in chosen:
            wrong[profile.node] = f"claims partition {profile.client}, which node {chosen[profile.client].node} has"
        else:
            chosen[profile.client] = profile
    return chosen, wrong


def answers_profile(app: ClientApp, measure: Measure) -> None:
    """Make an app answer: in a deployment the server then knows latencies before the first round, not after it."""

    @app.query(KIND)
    def profile(message: Message, context: Context) -> Message:
        (model,) = message.content.array_records.values()
        tried_s, num_samples = measure(context, model)
        told: dict[str, int | float | list[int] | list[float]] = {
            "client": int(context.node_config["partition-id"]),
            "num-clients": int(context.node_config["num-partitions"]),
            "num-examples": num_samples,
            "compute-s": median(tried_s),
            "busy-s": sum(tried_s),
        }
        return Message(RecordDict({"arrays": model, "metrics": MetricRecord(told)}), reply_to=message)

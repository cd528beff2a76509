"""Profiles of nodes: which client a node is and how long it takes, asked before training begins.

The request carries the model and the answer returns it, so the measured transfer time includes Flower's own overhead
and the start of the client. The client runs its usual local training and reports how long it took.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from lesson.core.errors import InputError
from lesson.core.validation import MAX_SAMPLES
from lesson.flower.replies import in_simulation, pull_replies, read_metrics, scalars, tell
from lesson.settings.sections import MAX_CLIENTS

KIND = "profile"
TYPE = f"query.{KIND}"
POLL_S = 0.1
WAIT_EVERY_S = 5.0
"""Seconds between two checks for nodes while too few are connected."""
Chosen = TypeVar("Chosen", bound=Sized)
Measure = Callable[[Context, ArrayRecord], tuple[Sequence[float], int]]
"""Returns the durations of this client's local training from a model, in seconds, and its number of samples."""


@dataclass(frozen=True)
class Profile:
    """What a node reports about itself, and its measured times."""

    node: int
    client: int
    """Number of the client, from 0: the partition of the data that it holds."""
    num_clients: int
    num_samples: int
    compute_s: float
    upload_s: float
    """Seconds for everything except computing: transfer in both directions and the start of the client."""

    @property
    def latency_s(self) -> float:
        """Seconds from sending a model to receiving the update."""
        return self.compute_s + self.upload_s


@dataclass(frozen=True)
class Profiler:
    """Asks nodes for their profiles."""

    model: ArrayRecord
    patience_s: float = 120.0

    def question(self, node: int) -> Message:
        """Return the request to a node."""
        return Message(RecordDict({"arrays": self.model}), node, TYPE, ttl=self.patience_s)

    def read(self, node: int, answer: Message | Exception, took_s: float) -> Profile | None:
        """Return the profile in an answer that took `took_s` seconds; None if the answer is not usable."""
        try:
            if isinstance(answer, Exception) or answer.has_error():
                return None
            numbers = scalars(read_metrics(answer.content))
            client, num_clients, num_samples = (
                int(numbers[name]) for name in ("client", "num-clients", "num-examples")
            )
            compute_s, busy_s = numbers["compute-s"], numbers["busy-s"]
        except Exception:  # a malformed answer counts as none
            return None
        if not (0 <= client < num_clients <= MAX_CLIENTS and 0 < num_samples <= MAX_SAMPLES):
            return None
        if not 0 <= compute_s <= busy_s:
            return None
        return Profile(node, client, num_clients, num_samples, compute_s, max(took_s - busy_s, 1e-3))

    def ask(
        self, grid: Grid, nodes: Iterable[int], answered: Callable[[Profile], None] = lambda _: None
    ) -> dict[int, Profile | None]:
        """Ask all nodes at once and return their profiles; None for one without a usable answer in `patience_s`."""
        profiles: dict[int, Profile | None] = {}
        waiting, at_once = dict[str, tuple[int, float]](), in_simulation(grid)
        for node in nodes:
            profiles[node] = None
            begun_s = time.monotonic()
            ids = list(grid.push_messages([self.question(node)]))
            waiting |= {number: (node, begun_s) for number in ids if number}
        until_s = time.monotonic() + self.patience_s
        while waiting and time.monotonic() < until_s:
            for number, answer in pull_replies(grid, list(waiting), at_once=at_once):
                node, begun_s = waiting.pop(number)
                profiles[node] = profile = self.read(node, answer, time.monotonic() - begun_s)
                if profile is not None:
                    answered(profile)
            time.sleep(POLL_S if waiting else 0)
        return profiles

    def ask_twice(
        self, grid: Grid, nodes: Iterable[int], answered: Callable[[Profile], None] = lambda _: None
    ) -> dict[int, Profile | None]:
        """Ask nodes like `ask`, but measure with a second request.

        When it receives the first one, a device installs the app, imports libraries and fills its caches, which no
        later message has to wait for.
        """
        first = self.ask(grid, nodes)
        second = self.ask(grid, [node for node, profile in first.items() if profile is not None], answered)
        return first | {node: profile for node, profile in second.items() if profile is not None}


def by_registration(grid: Grid) -> list[int]:
    """Return the connected nodes in order of registration; in Flower's simulation, that is by partition."""
    return [node.node_id for node in sorted(grid.get_nodes(), key=lambda node: (node.registered_at, node.node_id))]


def wait_for_nodes(
    grid: Grid, setting: str, min_nodes: int, timeout_s: float, choose: Callable[[list[int]], tuple[Chosen, str]]
) -> Chosen:
    """Wait until `choose` accepts at least `min_nodes` of the connected nodes, and at least one; return its choice.

    `choose` is called with the connected nodes, in order of registration, when there are enough of them. It returns the
    nodes it accepts and, as text for the log, why it rejects others. InputError is raised if there are still too few
    after `timeout_s`; it names `setting`, which requires them.
    """
    until_s, needed = time.monotonic() + timeout_s, max(1, min_nodes)
    while True:
        nodes = by_registration(grid)
        few = f"only {len(nodes)} nodes are connected"
        if len(nodes) >= needed:
            chosen, why = choose(nodes)
            if len(chosen) >= needed:
                return chosen
            few = f"only {len(chosen)} of {len(nodes)} nodes are usable{why}"
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise InputError(f"{setting} is {min_nodes}, but {few}")
        tell(f"waiting for nodes: {setting} is {min_nodes}, {few}")
        time.sleep(min(WAIT_EVERY_S, left_s))


def choose_clients(profiles: Sequence[Profile]) -> tuple[dict[int, Profile], dict[int, str]]:
    """Return the profiles of the nodes that take part, by client, and what is wrong with the others, by node.

    Each node reports its own partition, and the server cannot know which one is right if two contradict each other.
    `profiles` must therefore be in order of registration, and the first node to claim a partition gets it: a later node
    cannot displace an earlier one. Node ids do not matter, as they are drawn again at every registration. Excluding
    both nodes would let one node remove any other. The number of partitions is the one that most nodes report, and in a
    tie the one reported first.
    """
    counts = Counter(profile.num_clients for profile in profiles)
    num_clients = max(counts, key=lambda number: counts[number], default=0)  # the first in a tie: dicts are ordered
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
    """Make a ClientApp answer profile requests, so that the server knows its latency before the first round."""

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

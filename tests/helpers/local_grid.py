"""A Flower grid within this process: threads pass real messages to a real ClientApp, one at a time per node."""

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from flwr.app import Array, Context, Error, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.clientapp import ClientApp
from flwr.common import NDArray
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Handle = Callable[[Message, Context], Message | None]
"""Maps a message to the reply of a node; None if it never replies."""


def fail(message: Message, context: Context) -> Message:
    """Raise in place of a reply."""
    raise RuntimeError("no data")


def keep_silent(message: Message, context: Context) -> None:
    """Never reply."""


class LocalGrid(Grid):
    """A grid that behaves like `InMemoryGrid` and `HttpGrid`: a reply can be pulled once and before its TTL expires.

    After that, pulling it gives the error MESSAGE_UNAVAILABLE.
    """

    def __init__(self, app: ClientApp, num_nodes: int, run_config: dict[str, Any] | None = None) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.nodes = {
            1000 + 7 * number: Context(
                run_id=1,
                node_id=1000 + 7 * number,
                node_config={"partition-id": number, "num-partitions": num_nodes},
                state=RecordDict(),
                run_config=run_config or {},
            )
            for number in reversed(range(num_nodes))  # as in Flower, nodes are not in the order of partitions
        }
        self.registered = {node: f"{context.node_config['partition-id']:06}" for node, context in self.nodes.items()}
        self.names: dict[int, str] = {}
        self.keys: dict[int, bytes] = {}
        self.offline: set[int] = set()
        self.simulated, self.num_pushed = False, 0
        self.handle: Handle = app
        self._pool = ThreadPoolExecutor(4)
        self._lock = threading.Lock()
        self._node_locks = {node: threading.Lock() for node in self.nodes}
        self._waiting: dict[str, float] = {}
        self._done: dict[str, Message] = {}

    def set_run(self, run: Any) -> None:
        """Do nothing: this grid has no run."""

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return [node for node in self.nodes if node not in self.offline]

    def get_nodes(self) -> list[NodeInfo]:
        """As in Flower, a node shows how often it sends heartbeats; simulated nodes never do."""
        every_s = 1e300 if self.simulated else 30.0
        return [
            NodeInfo(
                node_id=node,
                registered_at=self.registered.get(node, "later"),
                heartbeat_interval=every_s,
                name=self.names.get(node, ""),
                public_key=self.keys.get(node, b""),
            )
            for node in self.get_node_ids()
        ]

    def node(self, partition: int) -> int:
        """Return the node of a partition."""
        return next(node for node, context in self.nodes.items() if context.node_config["partition-id"] == partition)

    def intercept(self, handle: Handle, partition: int | None = None, kind: str = "") -> None:
        """Let `handle` reply to messages for this partition and of this kind, by default to all of them."""
        app = self.handle

        def choose(message: Message, context: Context) -> Message | None:
            is_theirs = partition in (None, context.node_config["partition-id"])
            chosen = handle if is_theirs and message.metadata.message_type.startswith(kind) else app
            return chosen(message, context)

        self.handle = choose

    def configure(self, name: str, *values: float) -> None:
        """Set an entry of the node config, given by partition."""
        for context in self.nodes.values():
            context.node_config[name] = values[int(context.node_config["partition-id"])]

    def name_by_partition(self) -> None:
        """Give every node its partition as its name."""
        self.names = {node: str(context.node_config["partition-id"]) for node, context in self.nodes.items()}

    def move(self, node: int, new: int) -> None:
        """Let the client of a node come back as another node with the same key."""
        self.nodes[new], self._node_locks[new] = self.nodes.pop(node), self._node_locks[node]
        self.names[new], self.keys[new] = self.names.pop(node, ""), self.keys[node]
        self.registered[new] = "later"

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._push(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        found = []
        with self._lock:
            for number in message_ids:
                if number not in self._waiting or self._waiting[number] < time.time():
                    self._waiting.pop(number, None)
                    self._done.pop(number, None)
                    found.append(_unavailable(number))
                elif number in self._done:
                    del self._waiting[number]
                    found.append(self._done.pop(number))
        return found

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        ids, replies = set(self.push_messages(messages)), []
        until = time.time() + (timeout or 60)
        while ids and time.time() < until:
            for message in self.pull_messages(ids):
                replies.append(message)
                ids.discard(message.metadata.reply_to_message_id)
            time.sleep(0.002)
        return replies

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _push(self, message: Message) -> str:
        self.num_pushed += 1
        if message.metadata.dst_node_id not in self.get_node_ids():
            return ""
        number = message.metadata.__dict__["_message_id"] = uuid.uuid4().hex
        self._waiting[number] = message.metadata.created_at + message.metadata.ttl
        self._pool.submit(self._work, message)
        return number

    def _work(self, message: Message) -> None:
        node = message.metadata.dst_node_id
        with self._node_locks[node]:
            try:
                reply = self.handle(message, self.nodes[node])
            except Exception as error:
                code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
                reply = Message(Error(code, f"{type(error)}:<'{error}'>"), reply_to=message)
        if reply is not None:
            reply.metadata.__dict__["_message_id"] = uuid.uuid4().hex
            with self._lock:
                self._done[message.metadata.message_id] = reply


MakeGrid = Callable[..., LocalGrid]


@contextmanager
def arrays_read_one_by_one() -> Iterator[None]:
    """Let only one thread at a time decode arrays, as numpy's use of `ast` is not thread-safe (cpython gh-106905)."""
    read, lock = Array.numpy, threading.Lock()

    def numpy(array: Array) -> NDArray:
        with lock:
            return read(array)

    with patch.object(Array, "numpy", numpy):
        yield


def _unavailable(number: str) -> Message:
    metadata = Metadata(1, "", 1, 1, number, group_id="", created_at=time.time(), ttl=0, message_type="system")
    return make_message(metadata=metadata, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, "unavailable"))

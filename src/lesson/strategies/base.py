"""What a strategy receives and what it returns. A strategy never touches a tensor or a clock.

Clients are numbered 0 … num_clients − 1. A client trains for at most one update at a time. An update that has arrived
but has not been aggregated waits at the server, and its client may start again meanwhile. Rounds count from 1, model
versions from 0; every round that aggregates something creates a version. Staleness is measured in versions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np

from lesson.core.arrays import NO_CLIENTS, BoolArray, FloatArray, IntArray
from lesson.core.errors import InputError


@dataclass(frozen=True, eq=False, slots=True)
class ServerView:
    """What the server knows when a round opens or closes. Arrays have shape (num_clients,) and are read-only.

    Times are the server's estimates, not the actual ones. The arrays are those that the round loop works on: they are
    valid until the strategy returns and change later. A strategy that needs their values in a later round copies them.
    """

    round: int
    version: int
    now_s: float
    num_connected: int
    connected: BoolArray
    """Whether each client can be reached, idle or busy. Real clients disconnect and rejoin."""
    compute_s: FloatArray
    """Compute time of the usual local training."""
    upload_s: FloatArray
    """Upload time on the client's own band."""
    shared_upload_s: FloatArray
    """Upload time of a client alone on the band of all clients together, for plans whose uploads go in turn."""
    download_s: FloatArray
    """Download time of the model; 0 if downloads are neglected."""
    latency_s: FloatArray
    """Sum of download, compute and upload time. A fleet from a file may have only this sum; the parts are then NaN."""
    first_latency_s: FloatArray
    """Latencies estimated before anything was measured, for tiers that are formed once and kept. In real time, where
    clients join later, the newest estimates."""
    local_steps: IntArray
    """Number of minibatches in the usual local training, to which `compute_s` refers."""
    num_samples: IntArray
    client_weight: FloatArray
    """Weight of each client in an average, before normalization."""
    idle: BoolArray
    """Whether each client is connected and not training."""
    busy: BoolArray
    """Whether each client is connected and training."""
    num_busy: int
    waiting: IntArray
    """Number of updates of each client that wait at the server."""
    freed: IntArray
    """Clients to reconsider when a round opens: since the last round opened, they have become idle, their estimates
    were refreshed, or one of their updates left the server. Sorted; in the first round, all connected clients; empty in
    `merge`. The cost of a strategy that looks only at these clients does not grow with the fleet."""
    started_round: IntArray
    """Round in which each client last started; 0 before its first start."""
    started_s: FloatArray
    """When each client last started; NaN before its first start."""
    signals: Mapping[str, Any]
    """The signals that the strategy `needs`, as far as the model server provides them; each is computed when accessed.

    client_accuracy: accuracy of the newest model on the data that each client holds out, a tenth of its samples, shape
    (num_clients,); NaN for a client without such data. Clients hold data out only if the strategy needs this signal.
    confirmation: Σ a·v·d and Σ a·d·d over all updates aggregated so far that started from an older version, where v is
    the update, d the change of the global model since that version, and a the update's weight."""


@dataclass(frozen=True, eq=False, slots=True)
class Updates:
    """Updates, one row each, in order of arrival; arrays have shape (num_updates,)."""

    id: IntArray
    client: IntArray
    base_version: IntArray
    started_round: IntArray
    started_s: FloatArray
    expected_s: FloatArray
    """Latency that the server expected when the client started, in seconds."""
    arrived_s: FloatArray
    """When the update arrived; while it is in flight, when it will arrive, inf if that is not known yet."""
    index: IntArray
    """Number of local trainings that the client had started before this one."""
    lr_scale: FloatArray
    local_steps: IntArray
    batches: IntArray
    """`lr_scale`, `local_steps` and `batches` are those of the plan that started the local training."""
    compute_scale: FloatArray
    """Compute time of this local training divided by that of the client's usual one."""
    in_turn: BoolArray
    """Whether the client uploads in turn, alone on the band of all clients together."""

    def __len__(self) -> int:
        return len(self.id)

    @property
    def keys(self) -> list[tuple[int, int]]:
        """(client, index) of each update, which identifies it."""
        return list(zip(self.client.tolist(), self.index.tolist(), strict=True))

    def __getitem__(self, rows: BoolArray | IntArray) -> Self:
        return type(self)(*(getattr(self, name)[rows] for name in self.__slots__))

    @classmethod
    def join(cls, first: "Updates", second: "Updates") -> "Updates":
        """Return the rows of both."""
        if not len(first) or not len(second):
            return second if len(second) else first
        return cls(*(np.concatenate([getattr(first, name), getattr(second, name)]) for name in cls.__slots__))


_NO_TIMES: FloatArray = np.empty(0)
_NO_FLAGS: BoolArray = np.empty(0, dtype=np.bool_)
NO_UPDATES = Updates(
    id=NO_CLIENTS,
    client=NO_CLIENTS,
    base_version=NO_CLIENTS,
    started_round=NO_CLIENTS,
    started_s=_NO_TIMES,
    expected_s=_NO_TIMES,
    arrived_s=_NO_TIMES,
    index=NO_CLIENTS,
    lr_scale=_NO_TIMES,
    local_steps=NO_CLIENTS,
    batches=NO_CLIENTS,
    compute_scale=_NO_TIMES,
    in_turn=_NO_FLAGS,
)


@dataclass(frozen=True, slots=True)
class Deadline:
    """The round closes at `by_s`."""

    by_s: float


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The round closes when `count` updates have arrived in it, or at `by_s`."""

    count: int
    by_s: float = np.inf


@dataclass(frozen=True, eq=False, slots=True)
class AllOf:
    """The round closes when none of these clients is busy any more, or at `by_s`."""

    clients: IntArray
    by_s: float = np.inf


@dataclass(frozen=True, eq=False, slots=True)
class AnyOf:
    """The round closes when one of these groups has no busy client left, or at `by_s`. Idle groups do not count."""

    groups: Sequence[IntArray]
    by_s: float = np.inf


Closing = Deadline | Arrivals | AllOf | AnyOf


@dataclass(frozen=True, eq=False, slots=True)
class RoundPlan:
    """Which clients start now, how they train, and what closes the round.

    Lists, tuples and ranges are accepted in place of arrays.
    """

    starts: IntArray
    """Idle clients that start from the newest model now."""
    closes: Closing
    _: KW_ONLY
    lr_scale: FloatArray | float = 1.0
    """Factor of the step size, one per start or one for all."""
    local_steps: IntArray | None = None
    """Number of local steps of each start, one minibatch each; scales the compute time. None: the usual number."""
    batches: IntArray | None = None
    """Number of minibatches over which the gradient of a step is averaged, one per start or one for all; it scales the
    compute time. More than 1 requires local training of a single step. None: 1."""
    uploads: Literal["parallel", "in-turn"] = "parallel"
    """With "in-turn", clients upload one after the other, in the order of `starts`, in `shared_upload_s` each."""
    drops: IntArray = field(default_factory=lambda: NO_CLIENTS)
    """Busy clients whose local training is canceled. They become idle at once and may be among `starts`."""
    tiers: IntArray | None = None
    """Tier of each start, to count tier changes; None for strategies without tiers."""
    note: str = ""
    """Explanation for the round's record; may be empty."""


@dataclass(frozen=True, eq=False, slots=True)
class GroupMemory:
    """Named groups of updates. The server keeps one vector per group between aggregations and aggregates these vectors.

    `names` gives the group of each aggregated update. An aggregation has three steps:
    1. The vectors of the groups in `resets` are set to the newest model.
    2. The vector of each group in `names` is set to the weighted sum of its updates. In a group, the weights of the
       merge must sum to at most 1.
    3. The vectors of the groups in `weights`, with these weights, replace the updates in the formula of the merge. The
       model changes even if no update is aggregated.
    Before it is first set, the vector of a group is the initial model. If the merge is of updates, it is zero instead,
    and step 1 sets it to zero.
    """

    names: Sequence[str]
    weights: Mapping[str, float]
    resets: Sequence[str] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Merge:
    """Which of the updates that wait at the server are aggregated, and how. The others keep waiting.

    Lists, tuples and ranges are accepted in place of arrays. With w the global model, and a, m and base the weight, the
    model and the base version of each update, the new model is:

    models:  w ← (1 − Σa)·w + Σ a·m
    updates: w ← w + Σ a·(m − base)
    """

    updates: IntArray
    """Ids of the updates to aggregate."""
    weights: FloatArray
    """Weight of each update; for models, the weights sum to at most 1."""
    _: KW_ONLY
    of: Literal["models", "updates"] = "models"
    """Which of the two formulas is used."""
    groups: GroupMemory | None = None
    drops: IntArray = field(default_factory=lambda: NO_CLIENTS)
    """Ids of waiting updates to discard."""


class Strategy(Protocol):
    """Decides which clients train, when a round closes and which updates are aggregated."""

    @property
    def needs(self) -> frozenset[str]:
        """Names of the signals that this strategy reads from its view."""
        ...

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        """Return the plan of the round that opens now."""
        ...

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        """Return which updates to aggregate and to drop; `arrived` are all updates that wait at the server."""
        ...

    def state(self) -> dict[str, Any]:
        """Return the state that a checkpoint has to store, as small values for JSON."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        ...


class Stateless:
    """Base class of strategies that read no signals and keep no state between rounds."""

    needs: ClassVar[frozenset[str]] = frozenset()

    def state(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Ignore the state, which is empty."""


def average(view: ServerView, updates: Updates, drops: IntArray = NO_CLIENTS) -> Merge:
    """Return the merge of Eq. (10): a mean of models, weighted by `client_weight`."""
    return Merge(updates.id, shares(view.client_weight[updates.client]), drops=drops)


def shares(weights: FloatArray, groups: IntArray | None = None) -> FloatArray:
    """Return weights divided by their sum, or each by the sum of its group; raise InputError if a sum is 0."""
    small = scaled(weights)
    totals = small.sum() if groups is None else np.bincount(groups, small)[groups]
    if len(weights) and not np.all(totals > 0):
        raise InputError("client_weight of the clients that are aggregated must sum to more than 0, got 0")
    return np.asarray(small / totals) if len(weights) else weights


def scaled(weights: FloatArray) -> FloatArray:
    """Return weights divided by a power of two, so that none exceeds 1 and their sum is finite.

    Ratios of weights and of their sums stay bit-identical.
    """
    return np.asarray(np.ldexp(weights, -np.frexp(weights.max())[1])) if len(weights) else weights

"""What a strategy sees and what it answers. It never touches a tensor or a clock.

Clients are numbered 0 … num_clients − 1. A client works on at most one update at a time; one that has arrived but is
not merged yet waits at the server, and its client may start again meanwhile. Rounds count from 1, model versions
from 0; a version is made by every round that merges something. Staleness counts versions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np

from lesson.core.arrays import NO_CLIENTS, BoolArray, FloatArray, IntArray
from lesson.core.errors import InputError


@dataclass(frozen=True, eq=False, slots=True)
class ServerView:
    """All a server can know when a round opens or closes; arrays are (num_clients,) and read-only.

    The arrays are those that the round loop works on: they are valid until the strategy returns, and change later. A
    strategy that needs their values in another round keeps a copy.
    """

    round: int
    version: int
    now_s: float
    num_connected: int
    connected: BoolArray
    """Clients that are idle or busy; the others cannot be reached. Real ones come and go."""
    compute_s: FloatArray
    upload_s: FloatArray
    shared_upload_s: FloatArray
    """Of a client alone on the band of all clients together: what it takes where a plan lets uploads go in turn."""
    download_s: FloatArray
    """Until the model is there; 0 where that is neglected."""
    latency_s: FloatArray
    """The server's estimates, not the truth. A fleet from a file may know the total alone: the parts are NaN then."""
    first_latency_s: FloatArray
    """The estimates before any client was seen to work, for tiers that are made once and kept; on the wall, where
    clients come later, the newest."""
    local_steps: IntArray
    """Minibatches of the usual local work, which `compute_s` is the time of."""
    num_samples: IntArray
    client_weight: FloatArray
    """What a client counts for in an average, before normalizing."""
    idle: BoolArray
    """Connected and not working."""
    waiting: IntArray
    """How many updates of a client have arrived and are neither merged nor dropped."""
    freed: IntArray
    """Ids to look at again when a round opens: since the last one did, they became idle, were asked for their times, or
    an update of theirs left the server. Sorted; in the first round everybody connected; empty in `merge`. Work that
    follows these ids does not grow with the fleet."""
    started_round: IntArray
    started_s: FloatArray
    """When a client last started; 0 and NaN before."""
    signals: Mapping[str, Any]
    """What the strategy says it `needs`, where somebody provides it; worked out when it is looked at.

    client_accuracy: of the newest model on the tenth of its data that each client then holds out, (num_clients,); NaN
    for a client that holds none out.
    confirmation: Σ a·v·d and Σ a·d·d over all updates merged so far that started from an older version; v is how far
    the update moves its model, d how far the newest had moved since, a the weight it was merged with."""


@dataclass(frozen=True, eq=False, slots=True)
class Updates:
    """Pieces of client work, one row each; arrays are (num_updates,), in the order of arrival."""

    id: IntArray
    client: IntArray
    base_version: IntArray
    started_round: IntArray
    started_s: FloatArray
    expected_s: FloatArray
    """Seconds the server expected the work to take when it started."""
    arrived_s: FloatArray
    index: IntArray
    """How many pieces of work its client had started before."""
    lr_scale: FloatArray
    local_steps: IntArray
    batches: IntArray
    """As the plan that started the work said."""

    def __len__(self) -> int:
        return len(self.id)

    @property
    def keys(self) -> list[tuple[int, int]]:
        """Client and index of each: what tells one piece of work from all others."""
        return list(zip(self.client.tolist(), self.index.tolist(), strict=True))

    def __getitem__(self, rows: BoolArray | IntArray) -> Self:
        return type(self)(*(getattr(self, name)[rows] for name in self.__slots__))

    @classmethod
    def join(cls, first: "Updates", second: "Updates") -> "Updates":
        """The rows of both."""
        if not len(first) or not len(second):
            return second if len(second) else first
        return cls(*(np.concatenate([getattr(first, name), getattr(second, name)]) for name in cls.__slots__))


@dataclass(frozen=True, slots=True)
class Deadline:
    """The round closes at this time."""

    by_s: float


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The round closes when this many updates have arrived in it, or at `by_s`."""

    count: int
    by_s: float = np.inf


@dataclass(frozen=True, eq=False, slots=True)
class AllOf:
    """The round closes when none of these clients works any more, or at `by_s`."""

    clients: IntArray
    by_s: float = np.inf


@dataclass(frozen=True, eq=False, slots=True)
class AnyOf:
    """The round closes when nobody of one of these groups works any more, or at `by_s`. Idle groups do not count."""

    groups: Sequence[IntArray]
    by_s: float = np.inf


Closing = Deadline | Arrivals | AllOf | AnyOf


@dataclass(frozen=True, eq=False, slots=True)
class RoundPlan:
    """Who starts now, how hard they train, and what closes the round. Lists, tuples and ranges may stand for arrays."""

    starts: IntArray
    """Idle clients that get the newest model now."""
    closes: Closing
    _: KW_ONLY
    lr_scale: FloatArray | float = 1.0
    """Factor of the step size, one per start or one for all."""
    local_steps: IntArray | None = None
    """Minibatches, one per start; the compute time follows. None: the usual local work."""
    batches: IntArray | None = None
    """Minibatches whose mean gradient makes a step, where local work is one step; the compute time follows. None: 1."""
    uploads: Literal["parallel", "in-turn"] = "parallel"
    """In turn: one channel, used in the order of `starts`, each upload taking `shared_upload_s`."""
    drops: IntArray = field(default_factory=lambda: NO_CLIENTS)
    """Busy clients whose work nobody waits for any more. They are idle at once and may be among `starts`."""
    tiers: IntArray | None = None
    """For the round's record: one per start, of a strategy that has tiers."""
    note: str = ""
    """For the round's record: why, where a strategy has something to explain."""


@dataclass(frozen=True, eq=False, slots=True)
class GroupMemory:
    """Group means the server keeps by name between merges, and what each of them counts for in the new model.

    `names` has one group per merged update: a named group becomes the weighted sum of its updates (the merge's weights,
    which sum to at most 1 in each group). Then the groups in `weights`, those filled earlier too, stand in for single
    updates in the merge's formula, and the model moves even if no update was merged. `resets` are filled with the
    newest model first. A group never filled holds the initial model. Where updates are merged, both are zero instead.
    """

    names: Sequence[str]
    weights: Mapping[str, float]
    resets: Sequence[str] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Merge:
    """Which of the updates that wait at the server enter the model, and how. The rest goes on waiting.

    Lists, tuples and ranges may stand for arrays.

    models:  w ← (1 − Σa)·w + Σ a·m
    updates: w ← w + Σ a·(m − its base)
    """

    updates: IntArray
    """Their ids."""
    weights: FloatArray
    _: KW_ONLY
    of: Literal["models", "updates"] = "models"
    groups: GroupMemory | None = None
    drops: IntArray = field(default_factory=lambda: NO_CLIENTS)
    """Ids of waiting updates that are never merged."""


class Strategy(Protocol):
    """Decides who trains, when a round ends and what is merged. A small value with four functions."""

    @property
    def needs(self) -> frozenset[str]:
        """Signals this strategy wants to see in its view."""
        ...

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        """What happens in the round that begins now."""
        ...

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        """What to do with all the updates that wait at the server when the round has closed."""
        ...

    def state(self) -> dict[str, Any]:
        """What has to survive a restart: small, JSON."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        ...


class Stateless:
    """The part of a strategy that looks at no signals and keeps nothing from one round to the next."""

    needs: ClassVar[frozenset[str]] = frozenset()

    def state(self) -> dict[str, Any]:
        """Nothing has to survive a restart."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """There is nothing to go on from."""


def average(view: ServerView, updates: Updates, drops: IntArray = NO_CLIENTS) -> Merge:
    """The merge of Eq. (10): models weighted by what their clients count for, normalized to 1."""
    return Merge(updates.id, shares(view.client_weight[updates.client]), drops=drops)


def shares(weights: FloatArray, groups: IntArray | None = None) -> FloatArray:
    """Weights divided by their sum, or each by the sum of its group; InputError if such a sum is 0."""
    small = scaled(weights)
    totals = small.sum() if groups is None else np.bincount(groups, small)[groups]
    if len(weights) and not np.all(totals > 0):
        raise InputError("client_weight of the clients that are aggregated must sum to more than 0, got 0")
    return np.asarray(small / totals) if len(weights) else weights


def scaled(weights: FloatArray) -> FloatArray:
    """Weights divided by a power of two, so that none exceeds 1 and their sum is finite.

    Quotients of weights and sums keep their bits.
    """
    return np.asarray(np.ldexp(weights, -np.frexp(weights.max())[1])) if len(weights) else weights

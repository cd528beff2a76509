"""The protocol of strategies: what a strategy receives and returns. It never touches a tensor or a clock.

Clients are numbered 0 … num_clients − 1. A client trains for at most one update at a time. An update that has arrived
but has not been aggregated waits at the server, and its client may start again meanwhile. Rounds count from 1, model
versions from 0; every round that aggregates something creates a version. Staleness is measured in versions.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from operator import attrgetter
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from lesson.core.arrays import NO_CLIENTS, BoolArray, FloatArray, IntArray
from lesson.core.errors import InputError
from lesson.core.validation import CheckedArguments
from lesson.fleet.allocation import Allocation


@dataclass(eq=False, slots=True)  # like plans, updates and merges, not frozen, which takes longer
class ServerView:
    """What the server knows when a round opens or closes. Arrays have shape (num_clients,) and are read-only.

    Times are the server's estimates, in seconds, not the actual times. The arrays are those that the round loop works
    on: they are valid until the strategy returns and change later. A strategy that needs their values in a later round
    must copy them.

    Attributes:
        round: Number of the round, from 1.
        version: Newest model version, from 0.
        now_s: Current time in seconds since the run began.
        num_connected: Number of connected clients.
        num_busy: Number of busy clients.
        to_consider: Clients to consider when a round opens, sorted: since the last round opened, they have become idle,
            their estimates were refreshed, or one of their updates left the server. In the first round, all connected
            clients; empty in `merge`. The cost of a strategy that looks only at these clients does not grow with the
            fleet.
        signals: The signals in the strategy's `needs` that are available in this run, each computed when it is accessed
            or, if it is a function, when it is called. "client_accuracy": accuracy of the newest model on the data that
            each client holds out, a tenth of its samples, shape (num_clients,); NaN for a client without such data.
            Clients hold data out only if the strategy needs this signal. "update_deviation": a function of two
            `Updates`, fresh and stale, that wait at the server; it returns Λ_s = ‖û − (u_s + n·û) / (n + 1)‖² / ‖û‖²
            for each stale update u_s, where û is the mean of the n fresh ones. Fresh updates with non-finite values are
            left out; Λ_s is NaN if u_s has non-finite values or if û is 0. Guards are not applied to it. Simulated
            updates are trained, and compressed if uploads are, for this signal, and once more when they are aggregated.
            "update_loss": a function of `Updates` that wait at the server; it returns, for each of them, the root mean
            square of the newest model's losses on the samples of its first minibatch; NaN without samples.
        connected: Whether each client is connected (idle or busy). Real clients disconnect and rejoin.
        compute_s: Compute time of the usual local training.
        upload_s: Upload time on the client's own band.
        shared_upload_s: Upload time of a client alone on the band of all clients together, for plans with uploads in
            turn.
        download_s: Download time of the model; 0 if downloads are neglected.
        latency_s: Sum of download, compute and upload time. A fleet from a file may have only this sum; the parts are
            then NaN.
        first_latency_s: Latencies estimated before anything was measured, for tiers that are formed once and kept. In
            real time, where clients join later, the newest estimates.
        local_steps: Number of minibatches in the usual local training, to which `compute_s` refers.
        batch_samples: Number of samples in each of these minibatches; 0 if it is unknown, or if clients train whole
            epochs.
        num_samples: Number of training samples of each client.
        client_weight: Weight of each client in an average, before normalization.
        idle: Whether each client is connected and not training.
        busy: Whether each client is connected and training.
        waiting: Number of updates of each client that wait at the server.
        started_round: Round in which each client last started; 0 before its first start.
        started_s: When each client last started; NaN before its first start.
        upload_bits: Size of the usual upload in bits.
        level_bits: Size of an upload in bits at each compression level that a plan may name, from the least to the most
            compression; empty without compression.
        compute_j: Compute energy of the usual local training in joules; NaN if unknown.
        transmit_j: Energy of the usual upload on the client's own band in joules; NaN if unknown.
        usual_resources: Usual band, transmit power and CPU frequency of each client, to which times refer. A plan may
            allocate other ones; the total bandwidth is the sum of the usual ones. None unless clients are drawn, with
            data rates by Eq. (5).
    """

    round: int
    version: int
    now_s: float
    num_connected: int
    num_busy: int
    to_consider: IntArray
    signals: Mapping[str, Any]
    connected: BoolArray
    compute_s: FloatArray
    upload_s: FloatArray
    shared_upload_s: FloatArray
    download_s: FloatArray
    latency_s: FloatArray
    first_latency_s: FloatArray
    local_steps: IntArray
    batch_samples: IntArray
    num_samples: IntArray
    client_weight: FloatArray
    idle: BoolArray
    busy: BoolArray
    waiting: IntArray
    started_round: IntArray
    started_s: FloatArray
    upload_bits: float
    level_bits: Mapping[float, float]
    compute_j: FloatArray
    transmit_j: FloatArray
    usual_resources: Allocation | None = None

    @property
    def rate_bps(self) -> FloatArray:
        """Data rate of the usual upload on each client's own band in bit/s."""
        with np.errstate(divide="ignore"):
            return np.asarray(self.upload_bits / self.upload_s)


@dataclass(eq=False)
class Updates:
    """Updates, one row each, in order of arrival; arrays have shape (num_updates,) and must not be changed.

    Attributes:
        id: Id of the update, which `Merge` refers to.
        client: Client that trained the update.
        base_version: Model version from which the local training started.
        started_round: Round in which the local training started.
        started_s: When the local training started, in seconds.
        expected_s: Latency that the server expected when the client started, in seconds.
        arrived_s: When the update arrived; while it is in flight, when it will arrive, inf if that is not known yet.
        index: Number of local trainings that the client had started before this one.
        lr_scale: Factor of the step size, from the plan that started the local training.
        local_steps: Number of local steps, from the same plan.
        samples: Number of samples per step, from the same plan or else the usual number; 0 if it is unknown, or if
            clients train whole epochs.
        tier: Tier in which the client started, from the same plan; 0 for strategies without tiers.
        level: Compression level of the upload, from the same plan; NaN without compression.
        compute_scale: Compute time of this local training divided by that of the client's usual one: by the work, and
            by the CPU frequency that was allocated.
        upload_scale: Expected time of this upload divided by that of the usual one: by the size, and by the band and
            power that were allocated.
        in_turn: Whether the client uploads in turn, alone on the band of all clients together.
    """

    id: IntArray
    client: IntArray
    base_version: IntArray
    started_round: IntArray
    started_s: FloatArray
    expected_s: FloatArray
    arrived_s: FloatArray
    index: IntArray
    lr_scale: FloatArray
    local_steps: IntArray
    samples: IntArray
    tier: IntArray
    level: FloatArray
    compute_scale: FloatArray
    upload_scale: FloatArray
    in_turn: BoolArray
    IS_SHARED: ClassVar[bool] = True  # the ledger, strategies and records may hold the same object

    def __len__(self) -> int:
        return len(self.id)

    @property
    def keys(self) -> list[tuple[int, int]]:
        """(client, index) of each update, which identifies it."""
        return list(zip(self.client.tolist(), self.index.tolist(), strict=True))

    def __getitem__(self, rows: BoolArray | IntArray) -> "Updates":
        if rows.dtype == np.bool_:
            count, rows = len(rows), rows.nonzero()[0]
            if len(rows) == count:  # masks often select all rows; skip indexing 16 arrays
                return self
        return Updates(*[column[rows] for column in _columns(self)]) if len(rows) else NO_UPDATES

    @classmethod
    def join(cls, *parts: "Updates") -> "Updates":
        """Return the rows of all parts, in order. The columns are joined when one of them is read."""
        filled = list(filter(len, parts))
        if len(filled) < 2:
            return filled[0] if filled else NO_UPDATES
        return _Joined([one for part in filled for one in (part.parts if isinstance(part, _Joined) else [part])])


class _Joined(Updates):
    """Rows of several parts, which become plain updates when a column is read; FedBuff seldom reads its buffer."""

    def __init__(self, parts: list[Updates]) -> None:
        self.parts, self._count = parts, sum(map(len, parts))

    def __len__(self) -> int:
        return self._count

    def __getattr__(self, name: str) -> Any:
        if name not in COLUMNS:
            raise AttributeError(name)
        columns = map(np.concatenate, zip(*map(_columns, self.parts), strict=True))
        self.__dict__ = dict(zip(COLUMNS, columns, strict=True))
        self.__class__ = Updates  # type: ignore[assignment]
        return getattr(self, name)


COLUMNS = tuple(column.name for column in fields(Updates))
"""Names of the columns of `Updates`."""
_columns = attrgetter(*COLUMNS)
_EMPTY: dict[Any, Any] = {IntArray: NO_CLIENTS, FloatArray: np.empty(0), BoolArray: np.empty(0, dtype=np.bool_)}
NO_UPDATES = Updates(*(_EMPTY[column.type] for column in fields(Updates)))


@dataclass(frozen=True, slots=True)
class Deadline:
    """The round closes at a given time.

    Attributes:
        by_s: Time in seconds since the run began, later than the time at which the round opens: `view.now_s + 20.0` for
            a round of 20 s.
    """

    by_s: float


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The round closes when a number of updates have arrived in it.

    Attributes:
        count: Number of updates.
        by_s: Time in seconds at which the round closes at the latest; inf for no limit.
    """

    count: int
    by_s: float = np.inf


@dataclass(frozen=True, eq=False, slots=True)
class AllOf:
    """The round closes when none of the given clients is busy anymore.

    Attributes:
        clients: Ids of the clients.
        by_s: Time in seconds at which the round closes at the latest; inf for no limit.
    """

    clients: IntArray
    by_s: float = np.inf


@dataclass(frozen=True, eq=False, slots=True)
class AnyOf:
    """The round closes when one of the given groups has no busy client left.

    Groups without a busy client from the start do not count.

    Attributes:
        groups: Client ids of each group.
        by_s: Time in seconds at which the round closes at the latest; inf for no limit.
    """

    groups: Sequence[IntArray]
    by_s: float = np.inf


@dataclass(frozen=True, eq=False, slots=True)
class Every:
    """The round closes at the next point of a grid of times, `interval_s` seconds apart.

    The round loop keeps the grid. A round that opens at the point at which the last one closed ends at the next point;
    otherwise, a new grid begins when the round opens. Points are multiples of the interval, not running sums, which
    would accumulate rounding errors.

    Attributes:
        interval_s: Distance of the points in seconds; inf for no limit.
        unless_done: The round closes earlier when none of these clients is busy anymore; None if it never does.
    """

    interval_s: float
    unless_done: IntArray | None = None


Closing = Deadline | Arrivals | AllOf | AnyOf
"""Conditions that a world can apply. The round loop replaces `Every` with one of them."""


@dataclass(eq=False, slots=True)
class RoundPlan:
    """Which clients start now, how they train, and what closes the round.

    Lists, tuples and ranges are accepted in place of arrays.

    Attributes:
        starts: Idle clients that start from the newest model now.
        closes: Condition that closes the round: `Deadline`, `Every`, `Arrivals`, `AllOf` or `AnyOf`.
        lr_scale: Factor of the step size. This and the next two have one entry per start, or one for all.
        local_steps: Number of local steps, one minibatch each, which scales the compute time. None: the usual number.
        samples: Number of samples over which the gradient of a step is averaged, which scales the compute time. Only
            for local training of a single step on a known number of samples, without clip_norm and adamw. They are
            drawn in minibatches of [training] batch_size, so a sample may occur in two of them. None: the usual
            minibatch.
        compression: Compression level of each start's upload, or one for all; it must be in `ServerView.level_bits`.
            None: the usual level.
        allocation: Band, transmit power and CPU frequency of each start, in place of those of `[radio] allocation`. The
            bands must fit into the total bandwidth, without that of clients that are still training. None: as the
            setting says. Only for drawn clients, whose data rates follow Eq. (5), with uploads in parallel.
        uploads: "parallel", or "in-turn" if clients upload one after the other, in the order of `starts`, in
            `shared_upload_s` each.
        drops: Busy clients whose local training is canceled. They become idle at once and may be among `starts`.
        tiers: Tier of each start; None for strategies without tiers.
        note: Explanation for the round's record; may be empty.
    """

    starts: IntArray
    closes: Closing | Every
    _: KW_ONLY
    lr_scale: FloatArray | float = 1.0
    local_steps: IntArray | None = None
    samples: IntArray | None = None
    compression: FloatArray | float | None = None
    allocation: Allocation | None = None
    uploads: Literal["parallel", "in-turn"] = "parallel"
    drops: IntArray = field(default_factory=lambda: NO_CLIENTS)
    tiers: IntArray | None = None
    note: str = ""


@dataclass(frozen=True, eq=False, slots=True)
class GroupMemory:
    """Named groups of updates. The server keeps one vector per group between aggregations and aggregates these vectors.

    An aggregation has three steps:
    1. The vectors of the groups in `resets` are set to the newest model.
    2. The vector of each group in `names` is set to the weighted sum of its updates. In a group, the weights of the
       merge must sum to at most 1.
    3. The vectors of the groups in `weights`, with these weights, replace the updates in the formula of the merge. The
       model changes even if no update is aggregated.
    Before it is first set, the vector of a group is the initial model. If the merge is of updates, it is zero instead,
    and step 1 sets it to zero.

    A merge of updates can also add the vectors of the time between steps 1 and 2, with the weights in `previous`, and
    the sum of all groups' vectors at that time, with the weight `previous_total`. The server updates this sum whenever
    a vector changes, so its cost does not grow with the number of groups.

    Attributes:
        names: Group of each aggregated update.
        weights: Weight of each group's vector.
        resets: Groups whose vectors are reset first.
        previous: Weight of each group's vector before step 2, possibly negative; only for merges of updates.
        previous_total: Weight of the sum of all groups' vectors before step 2; only for merges of updates.
    """

    names: Sequence[str]
    weights: Mapping[str, float]
    resets: Sequence[str] = ()
    _: KW_ONLY
    previous: Mapping[str, float] = field(default_factory=dict)
    previous_total: float = 0.0

    @property
    def has_weights(self) -> bool:
        """Whether the merge changes the model even if no update is aggregated."""
        return bool(self.weights or self.previous or self.previous_total)


@dataclass(eq=False, slots=True)
class Merge:
    """Which of the updates that wait at the server are aggregated, and how. The others keep waiting.

    Lists, tuples and ranges are accepted in place of arrays. With w the global model, and a, m and base the weight, the
    model and the base version of each update, the new model is:

        models:  w ← (1 − Σa)·w + Σ a·m
        updates: w ← w + Σ a·(m − base)

    Attributes:
        updates: Ids of the updates to aggregate.
        weights: Weight of each update; for models, the weights must sum to at most 1.
        of: Which of the two formulas is used, "models" or "updates".
        groups: Groups of updates that the server keeps between aggregations; None for none.
        step_scale: Factor of the server optimizer's step size in this merge; without an optimizer, of the change of the
            model.
        step_limit: Largest step size in this merge, after `step_scale`; inf for no limit.
        drops: Ids of waiting updates to discard.
    """

    updates: IntArray
    weights: FloatArray
    _: KW_ONLY
    of: Literal["models", "updates"] = "models"
    groups: GroupMemory | None = None
    step_scale: float = 1.0
    step_limit: float = np.inf
    drops: IntArray = field(default_factory=lambda: NO_CLIENTS)


class Strategy(Protocol):
    """Decides which clients train, when a round closes and which updates are aggregated.

    A checkpoint holds all attributes of a strategy: numbers, text, arrays, lists, tuples, sets, dicts and objects such
    as dataclasses, but no functions and no fields marked with `field(metadata={"cache": True})`. To save something
    else, define the methods `state()`, which returns it, and `restore(state)`. `lesson.testing.check_strategy` tests a
    strategy.

    A strategy whose rule includes a server optimizer can name it in an attribute `server_optimizer`, such as "amsgrad".
    It is used unless `[server] optimizer` sets another one. With an attribute `bias_correction` that is true, its
    moments m and v are divided by 1 − β^t in step t; only "amsgrad" can be corrected.
    """

    @property
    def needs(self) -> frozenset[str]:
        """Names of the signals that this strategy reads from its view."""
        ...

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        """Return the plan of the round that opens now."""
        ...

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        """Return which updates to aggregate and to drop; `arrived` holds all updates that wait at the server."""
        ...


class CheckedOptions(CheckedArguments):
    """Base class of strategies whose options are validated; derived classes are dataclasses, with a field per option.

    The annotation of a field defines the allowed values, with pydantic's `Field`, and a docstring below it describes
    the option: `share: Annotated[float, Field(gt=0, le=1)] = 0.5`. An invalid value raises InputError. Strategies that
    read signals override `needs`.
    """

    needs: ClassVar[frozenset[str]] = frozenset()


def average(view: ServerView, updates: Updates, drops: IntArray = NO_CLIENTS) -> Merge:
    """Return the merge of Eq. (10): a mean of models, weighted by `client_weight`.

    Args:
        view: What the server knows, as passed to `Strategy.merge`.
        updates: Updates to aggregate.
        drops: Ids of other waiting updates to discard.
    """
    return Merge(updates.id, shares(view.client_weight[updates.client]), drops=drops)


def shares(weights: FloatArray, groups: IntArray | None = None) -> FloatArray:
    """Return weights divided by their sum, or each by the sum of its group; raise InputError if a sum is 0."""
    if not len(weights):
        return weights
    small = scaled(weights)
    totals = small.sum() if groups is None else np.bincount(groups, small)[groups]
    least = totals if groups is None else totals.min()
    if not least > 0:
        raise InputError("client_weight of the clients that are aggregated must sum to more than 0, got 0")
    return np.asarray(small / totals)


def scaled(weights: FloatArray) -> FloatArray:
    """Return weights divided by a power of two, so that none exceeds 1 and their sum is finite.

    Ratios of weights and of their sums stay bit-identical.
    """
    return np.asarray(np.ldexp(weights, -math.frexp(weights.max())[1])) if len(weights) else weights

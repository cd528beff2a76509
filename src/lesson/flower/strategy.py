"""LESSON, or any strategy of this package, as a Flower strategy that replaces FedAvg in an existing app."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as FlowerStrategy

from lesson.clock.loop import RoundLoop
from lesson.clock.worlds import NominalWorld, RemoteWorld, WallWorld
from lesson.core.arrays import FloatArray
from lesson.core.errors import InputError, RunStoppedError
from lesson.core.random import RepeatedStream
from lesson.fleet.fleet import Fleet, draw_fleet, measured_fleet
from lesson.flower.arrays import Layout, num_bytes
from lesson.flower.evaluation import FederatedEvaluation, aggregate_replies, evaluate_content, sample
from lesson.flower.post import FieldNames, GridClients, weighted_means
from lesson.flower.profile import wait_for_nodes
from lesson.flower.recorder import RecordingGrid
from lesson.flower.replies import tell, tell_clients
from lesson.flower.server import Clock, clock_of
from lesson.learn.model_server import ModelServer
from lesson.learn.optimizers import ServerOptimizer
from lesson.learn.remote import Received, as_tensor
from lesson.learn.robust.checks import InvalidUpdateError
from lesson.learn.robust.guard import MergeGuard
from lesson.settings.guards import GuardSettings
from lesson.settings.sections import ServerSettings, TrainingSettings
from lesson.settings.settings import Settings
from lesson.strategies import FedAvg, Lesson
from lesson.strategies.base import Merge, RoundPlan, ServerView, Strategy, Updates
from lesson.strategies.checks import check_count, check_number

SPARE = 16
"""On the wall clock, this many clients can join later, plus as many as there are nodes at the start."""
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass
class MeasuredFirst:
    """A strategy whose first round is FedAvg, so that the server can measure the latency of every client."""

    strategy: Strategy
    first: Strategy = field(default_factory=FedAvg)

    @property
    def needs(self) -> frozenset[str]:
        """Signals that the strategy needs."""
        return self.strategy.needs

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        return (self.first if view.round == 1 else self.strategy).open_round(view, rng)

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        return (self.first if view.round == 1 else self.strategy).merge(view, arrived)

    def state(self) -> dict[str, Any]:
        return self.strategy.state()

    def restore(self, state: dict[str, Any]) -> None:
        self.strategy.restore(state)


class LessonStrategy(FlowerStrategy):
    """Replaces FedAvg in a Flower app: rounds last `deadline_s` seconds, and slower clients upload in fewer of them.

    Clients receive `server-round` and their own `lr`, which is that of the train config times their tier, and reply as
    they would to FedAvg. On the wall clock, the first round is a round of FedAvg, which measures latencies, unless
    `latency_s` is given. On the virtual clock, for Flower's simulation, `latency_s` is the latency of each partition;
    by default, latencies are drawn as for the paper's clients.
    """

    def __init__(
        self,
        deadline_s: float = 20.0,
        *,
        strategy: Strategy | None = None,
        clock: Clock | None = None,
        latency_s: Sequence[float] | FloatArray | None = None,
        lr_cap: float = math.inf,
        server: ServerSettings | None = None,
        guards: GuardSettings | None = None,
        min_available_nodes: int = 2,
        fraction_evaluate: float = 1.0,
        evaluate_every: int = 0,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        lr_key: str = "lr",
        seed: int = 0,
    ) -> None:
        check_number("deadline_s", deadline_s, most=math.inf)
        check_number("lr_cap", lr_cap, most=math.inf)
        check_count("min_available_nodes", min_available_nodes)
        check_number("fraction_evaluate", fraction_evaluate, most=1.0, or_zero=True)
        check_count("evaluate_every", evaluate_every, least=0)
        if clock not in (None, "virtual", "wall"):
            raise InputError(f"clock must be 'virtual' or 'wall', got {clock!r}")
        if isinstance(strategy, type) or not (strategy is None or hasattr(strategy, "open_round")):
            raise InputError(f"strategy must be an object of lesson.strategies, such as FedAvg(), got {strategy!r}")
        if not isinstance(server, ServerSettings | None):
            raise InputError(f"server must be ServerSettings(…), got {server!r}")
        if not isinstance(guards, GuardSettings | None):
            raise InputError(f"guards must be GuardSettings(…), got {guards!r}")
        self.deadline_s = float(deadline_s)
        self.strategy = strategy or Lesson(self.deadline_s)
        self.clock, self.lr_cap, self.seed = clock, float(lr_cap), seed
        self.server, self.guards = server or ServerSettings(), guards or GuardSettings()
        self.latency_s = None if latency_s is None else np.array(latency_s, dtype=np.float64).reshape(-1)
        if self.latency_s is not None and not np.all(self.latency_s > 0):
            raise InputError("latency_s must be > 0 for every client")
        self.min_available_nodes = min_available_nodes
        self.fraction_evaluate, self.evaluate_every = float(fraction_evaluate), evaluate_every
        self.words = FieldNames(arrayrecord_key, configrecord_key, weighted_by_key, lr_key)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run `num_rounds` rounds; see Flower's `Strategy.start`.

        `timeout` limits in seconds how long the server waits for nodes at the start, and for each reply of a node.
        Clients evaluate the model after the last round, and after every `evaluate_every` rounds.
        """
        check_number("timeout", timeout)
        config = dict(train_config or {})
        lr = config.get(self.words.lr)
        if not isinstance(lr, float | int) or isinstance(lr, bool) or not 0 < lr < math.inf:
            raise InputError(
                f"train_config must have '{self.words.lr}', the step size of a client in tier 1, got {lr!r}"
            )
        if not isinstance(initial_arrays, ArrayRecord) or not len(initial_arrays):
            raise InputError(f"initial_arrays must be an ArrayRecord that holds a model, got {initial_arrays!r:.80}")
        layout = Layout.of(initial_arrays)
        loop, world, server, post = self._round_loop(grid, initial_arrays, layout, config, timeout)
        reports = world.reports
        rejected_by = Counter[str]()
        self.summary()
        result, begin_s = Result(arrays=initial_arrays), time.monotonic()
        evaluation = FederatedEvaluation(
            post,
            loop.fleet.latency_s,
            dict(evaluate_config or {}),
            result.evaluate_metrics_clientapp,
            self.evaluate_every,
            self.fraction_evaluate,
            isinstance(world, WallWorld),
            self.deadline_s,
            timeout,
            self.seed,
            tell,
        )
        self._evaluate(0, initial_arrays, evaluate_fn, result)
        while loop.round < num_rounds and not loop.stop_reason:
            try:
                record = loop.step()
            except RunStoppedError as error:
                tell(f"stopping the run: {error}")
                break
            if record is None:
                break
            tell(
                f"round {record.round}/{num_rounds}: {len(record.merged)} aggregated, {len(record.started)} started, "
                f"{record.end_s:.1f} s{f'; {record.note}' if record.note else ''}"
            )
            if isinstance(grid, RecordingGrid):
                grid.note_round(record.round, record.end_s, record.merged.tolist(), record.staleness.tolist())
            rejected_by.update(rejection.reason for rejection in record.rejections)
            if (told := weighted_means(reports.of_round(record))) is not None:
                result.train_metrics_clientapp[record.round] = told
            result.arrays = layout.record(server.versions[loop.version].numpy())
            self._evaluate(record.round, result.arrays, evaluate_fn, result)
            if loop.round < num_rounds and not loop.stop_reason:
                evaluation.after_round(loop.round, result.arrays, loop.ledger)
        evaluation.after_last_round(loop.round, result.arrays, loop.ledger)
        if loop.stop_reason:
            tell(f"the run has stopped: {loop.stop_reason}")
        tell_clients(loop.fleet, self.deadline_s, rejected_by)
        tell(f"{loop.round} rounds in {time.monotonic() - begin_s:.1f} s")
        return result

    def summary(self) -> None:
        """Log the strategy and its options."""
        tell(f"{type(self).__name__}: {self.strategy}")

    def _round_loop(
        self, grid: Grid, arrays: ArrayRecord, layout: Layout, config: Mapping[str, Any], timeout: float
    ) -> tuple[RoundLoop, WallWorld | RemoteWorld, ModelServer, GridClients]:
        nodes = wait_for_nodes(
            grid, "min_available_nodes", self.min_available_nodes, timeout, lambda nodes: (nodes, "")
        )
        clock = self.clock or clock_of("auto", grid, timeout)
        latency_s = self.latency_s
        if clock == "virtual" and latency_s is None:
            latency_s = draw_fleet(Settings(), len(nodes), self.seed).latency_s.copy()
            tell("drawing latencies as for the paper's wireless clients; latency_s=[…] sets others, one value per node")
        if latency_s is not None and len(latency_s) != len(nodes):
            raise InputError(f"latency_s must have one value per node, got {len(latency_s)} for {len(nodes)} nodes")
        try:
            initial = as_tensor(layout.vector(arrays))
        except InvalidUpdateError as error:
            raise InputError(f"initial_arrays must hold numbers: {error.detail}") from None
        received = Received()
        server = ModelServer(
            initial,
            received,
            TrainingSettings(learning_rate=float(config[self.words.lr]), lr_cap=self.lr_cap),
            ServerOptimizer.of(self.server, self.strategy),
            MergeGuard(self.guards),
            needs=self.strategy.needs,
        )
        for note in server.notes:
            tell(f"note: {note}")
        num_clients = len(nodes) if clock == "virtual" else 2 * len(nodes) + SPARE
        parts = grid, num_clients, dict(enumerate(nodes)), layout, server, received, config, self.words
        post = GridClients(*parts, default_latency_s=self.deadline_s, tell=tell)
        fleet = replace(self._fleet(latency_s, len(nodes), num_clients), model_bits=8.0 * num_bytes(arrays))
        on_wall = clock == "wall"
        world: WallWorld | RemoteWorld
        if on_wall:
            world = wall = WallWorld(fleet, post, tell, timeout_s=timeout)
            if isinstance(grid, RecordingGrid):
                grid.follow(post.node_of, lambda: wall.elapsed_s)
        else:
            world = RemoteWorld(NominalWorld(fleet), post, tell, timeout_s=timeout)
        strategy = MeasuredFirst(self.strategy) if on_wall and latency_s is None else self.strategy
        exclude_after = self.guards.exclude_after_rejections
        loop = RoundLoop(strategy, world, server, seed=self.seed, exclude_after=exclude_after, tell=tell)
        return loop, world, server, post

    def _fleet(self, latency_s: FloatArray | None, num_nodes: int, num_clients: int) -> Fleet:
        """Return a fleet with the given latencies, or `deadline_s` if unknown; inf for clients that may join later.

        Every client has one sample here, as its replies give its weight.
        """
        known = np.full(num_clients, np.inf)
        known[:num_nodes] = self.deadline_s if latency_s is None else latency_s
        unknown, once = np.full(num_clients, np.nan), np.ones(num_clients, dtype=np.int64)
        return measured_fleet(Settings(), range(num_clients), once, unknown, unknown.copy(), known)

    def _evaluate(self, round: int, arrays: ArrayRecord, evaluate_fn: EvaluateFn | None, result: Result) -> None:
        told = evaluate_fn(round, arrays) if evaluate_fn is not None else None
        if told is not None:
            tell(f"round {round}: {', '.join(f'{name} {value}' for name, value in told.items())}")
            result.evaluate_metrics_serverapp[round] = told

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the requests to evaluate a model, as Flower's FedAvg does; `start` does not use this method."""
        if not self.fraction_evaluate:
            return []
        content = evaluate_content(arrays, config, server_round, self.words)
        random = RepeatedStream(self.seed, "federated evaluation")
        nodes, group = sorted(grid.get_node_ids()), str(server_round)
        chosen = sample(np.arange(len(nodes)), self.fraction_evaluate, random, server_round)
        return [Message(content, nodes[place], MessageType.EVALUATE, group_id=group) for place in chosen.tolist()]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:  # noqa: ARG002
        """Return the weighted means of the metrics in replies; replies that cannot be used are logged."""
        return aggregate_replies(replies, self.words, tell)

    def configure_train(self, *_: Any, **__: Any) -> NoReturn:
        """Raise InputError: rounds overlap, so a strategy that wraps this one would run rounds of FedAvg instead."""
        raise InputError(
            "LessonStrategy cannot be wrapped by another strategy, because its rounds overlap: call its own start; for "
            "differential privacy, add a mod to the client's train function, such as @app.train(mods=[LocalDpMod(…)])"
        )

    aggregate_train = configure_train

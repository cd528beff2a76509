"""LESSON, or any strategy of this package, as a Flower strategy that replaces FedAvg in an existing app."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as FlowerStrategy
from pydantic import Field

from lesson.clock.loop import RoundLoop
from lesson.clock.worlds import NominalWorld, RemoteWorld, WallWorld
from lesson.core.arrays import FloatArray
from lesson.core.errors import InputError, RunStoppedError
from lesson.core.random import RepeatedStream
from lesson.core.validation import Count, Positive, PositiveOrInf, Share, check_value
from lesson.flower.app_run import AppRun, EvaluateFn
from lesson.flower.arrays import Layout, num_bytes
from lesson.flower.evaluation import FederatedEvaluation, aggregate_replies, evaluate_content, sample
from lesson.flower.participants import checked_latencies, in_simulated_time, on_the_wall
from lesson.flower.post import FieldNames, GridClients
from lesson.flower.profile import wait_for_nodes
from lesson.flower.recorder import RecordingGrid, record_run
from lesson.flower.replies import logger, tell, tell_clients, warn
from lesson.flower.run_folder import AppFolder, app_settings
from lesson.flower.server import Clock, clock_of
from lesson.flower.watch import MAX_ROUNDS_WITHOUT_UPDATE, UpdateWatch
from lesson.learn.executor import Executor
from lesson.learn.guards import InvalidUpdateError
from lesson.learn.lane import Lane
from lesson.learn.optimizers import ServerOptimizer
from lesson.learn.pipeline import Pipeline
from lesson.learn.remote import Received, as_tensor
from lesson.runs.trackers import Tracker, checked_trackers
from lesson.settings.sections import GuardSettings, ServerSettings, TrainingSettings
from lesson.strategies.base import Merge, RoundPlan, ServerView, Strategy, Updates
from lesson.strategies.fedavg import FedAvg
from lesson.strategies.lesson import Lesson

CAPPED_TIER = 4
"""By default, no step size is larger than in this tier: the highest of the paper's clients at a deadline of 20 s."""


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


class LessonStrategy(FlowerStrategy):
    """Replaces FedAvg in a Flower app: rounds last `deadline_s` seconds, and slower clients upload in fewer of them.

    Clients receive `server-round` and their own `lr`, which is that of the train config times their tier, and reply as
    they would to FedAvg. On the wall clock, the first round is a round of FedAvg, which measures latencies, unless
    `latency_s` is given. On the virtual clock, for Flower's simulation, `latency_s` is the latency of each partition;
    by default, latencies are drawn as for the paper's clients.

    With `out`, the run is written to a run folder with checkpoints, and `resume` continues the run in this folder,
    optionally with more rounds than before. `start` raises RunStoppedError if `max_rounds_without_update` rounds have
    aggregated nothing because updates failed; `result` then holds the result so far.
    """

    result: Result
    """The result of the last call of `start`, even if it raised an error."""

    def __init__(
        self,
        deadline_s: float = 20.0,
        *,
        strategy: Strategy | None = None,
        clock: Clock | None = None,
        latency_s: Sequence[float] | FloatArray | Mapping[str, float] | None = None,
        lr_cap: float | None = None,
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
        out: Path | str | None = None,
        resume: bool = False,
        trackers: Sequence[Tracker | str] = (),
        max_rounds_without_update: int = MAX_ROUNDS_WITHOUT_UPDATE,
    ) -> None:
        check_value("deadline_s", deadline_s, PositiveOrInf)
        check_value("lr_cap", lr_cap, PositiveOrInf | None)
        check_value("max_rounds_without_update", max_rounds_without_update, Count)
        check_value("min_available_nodes", min_available_nodes, Count)
        check_value("fraction_evaluate", fraction_evaluate, Share)
        check_value("evaluate_every", evaluate_every, Annotated[int, Field(ge=0, strict=True)])
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
        self.clock, self.lr_cap, self.seed = clock, None if lr_cap is None else float(lr_cap), seed
        self.server, self.guards = server or ServerSettings(), guards or GuardSettings()
        self.latency_s = checked_latencies(latency_s)
        if not isinstance(out, Path | str | None) or out == "":
            raise InputError(f"out must be the path of a folder, got {out!r}")
        for name, given in (("resume", resume), ("trackers", trackers)):
            if given and out is None:
                raise InputError(f"{name} has no effect without out, the folder of the run; pass both")
        self.out, self.resume, self.trackers = out, resume, checked_trackers(trackers)
        self.max_rounds_without_update = max_rounds_without_update
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

        `timeout` is the longest time in seconds that the server waits for nodes at the start, and for each reply.
        Clients evaluate the model after the last round, and after every `evaluate_every` rounds.
        """
        check_value("timeout", timeout, Positive)
        config = dict(train_config or {})
        lr = config.get(self.words.lr)
        if not isinstance(lr, float | int) or isinstance(lr, bool) or not 0 < lr < math.inf:
            raise InputError(
                f"train_config must have '{self.words.lr}', the step size of a client in tier 1, got {lr!r}"
            )
        if not isinstance(initial_arrays, ArrayRecord) or not len(initial_arrays):
            raise InputError(f"initial_arrays must be an ArrayRecord that holds a model, got {initial_arrays!r:.80}")
        layout, result = Layout.of(initial_arrays), Result(arrays=initial_arrays)
        self.result, begin_s = result, time.monotonic()
        folder = self._folder(num_rounds, float(lr), initial_arrays)
        if folder is not None and (ended := folder.finished(layout)) is not None:
            return ended
        pipeline, world, post = self._pipeline(grid, initial_arrays, layout, config, timeout, folder)
        self.summary()
        evaluation = FederatedEvaluation(
            post,
            pipeline.loop.fleet.latency_s,
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
        again = "start the run again" if folder is None else "resume the run with resume=True"
        run = AppRun(
            pipeline,
            layout,
            world.reports,
            evaluation,
            result,
            num_rounds,
            UpdateWatch(self.max_rounds_without_update, f"check the logs of the clients, fix the cause and {again}"),
            evaluate_fn,
            on_wall_clock=isinstance(world, WallWorld),
            roster=post.roster,
            kept_lines=tuple if folder is None else folder.lines,
        )
        try:
            if folder is None or not folder.is_begun:
                run.evaluate_initial()
            if folder is None:
                run.run_rounds()
            else:
                folder.execute(run, len(post.node_of))
            tell_clients(run.fleet, self.deadline_s, run.rejected_by)
            tell(f"{pipeline.loop.round} rounds in {time.monotonic() - begin_s:.1f} s")
            run.check_end()
        except RunStoppedError as error:
            logger.error(f"error: {error}")
            raise
        return result

    def summary(self) -> None:
        """Log the strategy and its options."""
        tell(f"{type(self).__name__}: {self.strategy}")

    def _folder(self, num_rounds: int, lr: float, arrays: ArrayRecord) -> AppFolder | None:
        """Return the run folder; None without `out`. Raises InputError if it holds another run."""
        if self.out is None:
            return None
        deadline_s = getattr(self.strategy, "deadline_s", self.deadline_s)
        settings = partial(
            app_settings,
            self.strategy,
            deadline_s,
            num_rounds=num_rounds,
            seed=self.seed,
            lr=lr,
            lr_cap=self._cap(lr),
            model_bits=8.0 * num_bytes(arrays),
            server=self.server,
            guards=self.guards,
        )
        return AppFolder(Path(self.out), self.resume, self.trackers, lambda count: settings(num_clients=count))

    def _cap(self, lr: float) -> float:
        """Return the upper bound of the step size of a client."""
        return CAPPED_TIER * lr if self.lr_cap is None else self.lr_cap

    def _pipeline(
        self,
        grid: Grid,
        arrays: ArrayRecord,
        layout: Layout,
        config: Mapping[str, Any],
        timeout: float,
        folder: AppFolder | None,
    ) -> tuple[Pipeline, WallWorld | RemoteWorld, GridClients]:
        ids = wait_for_nodes(grid, "min_available_nodes", self.min_available_nodes, timeout, lambda ids: (ids, ""))
        clock = self.clock or clock_of("auto", grid, timeout)
        there = {node.node_id: node for node in grid.get_nodes()}
        nodes = [there[node] for node in ids if node in there]
        try:
            initial = as_tensor(layout.vector(arrays))
        except InvalidUpdateError as error:
            raise InputError(f"initial_arrays must hold numbers: {error.detail}") from None
        received, lr = Received(), float(config[self.words.lr])
        training = TrainingSettings(learning_rate=lr, lr_cap=self._cap(lr))
        optimizer = ServerOptimizer.of(self.server, self.strategy)
        lane = Lane(initial, training, optimizer, self.guards)
        if optimizer.note:
            tell(f"note: {optimizer.note}")
        if clock == "wall":
            kept = (None, None) if folder is None else (folder.num_nodes, folder.nodes)
            who = on_the_wall(nodes, self.latency_s, self.deadline_s, *kept)
        else:
            who = in_simulated_time(nodes, self.latency_s, self.deadline_s, self.seed)
        if folder is not None and clock == "wall":
            grid = record_run(grid, folder.path, *folder.recorded)
        parts = grid, len(who.latency_s), who.node_of, layout, lane, received, config, self.words
        post = GridClients(*parts, roster=who.roster, assumed_s=who.assumed_s, names=who.names, tell=tell, warn=warn)
        fleet = replace(who.fleet(), model_bits=8.0 * num_bytes(arrays))
        world: WallWorld | RemoteWorld
        if clock == "wall":
            world = wall = WallWorld(fleet, post, tell, warn=warn, first_is_cold=True, timeout_s=timeout)
            if isinstance(grid, RecordingGrid):
                grid.follow(post.node_of, lambda: wall.elapsed_s)
        else:
            world = RemoteWorld(NominalWorld(fleet), post, warn, counts_bytes=True, timeout_s=timeout)
        measured_first = clock == "wall" and self.latency_s is None
        strategy = MeasuredFirst(self.strategy) if measured_first else self.strategy
        exclude_after = self.guards.exclude_after_rejections
        loop = RoundLoop(strategy, world, seed=self.seed, exclude_after=exclude_after, tell=warn)
        return Pipeline(loop, lane, Executor(received, None)), world, post

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

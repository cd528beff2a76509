"""LESSON, or any strategy of this package, as a Flower strategy that replaces FedAvg in an existing app."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Literal, NoReturn

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as FlowerStrategy
from pydantic import Field

from lesson.clock.loop import RoundLoop
from lesson.clock.worlds import NominalWorld, RemoteWorld, WallWorld
from lesson.core.arrays import FloatArray
from lesson.core.errors import InputError, RunStoppedError
from lesson.core.validation import Count, Positive, PositiveOrInf, Share, check_value
from lesson.fleet.fleet import Fleet
from lesson.flower.app_run import AppRun, EvaluateFn
from lesson.flower.arrays import Layout, num_bytes
from lesson.flower.clients import LOCAL_STEPS, GridClients
from lesson.flower.codec import Uploads
from lesson.flower.evaluation import FederatedEvaluation
from lesson.flower.folder import OpenFolder, RunFolder, app_settings
from lesson.flower.identity import Node
from lesson.flower.mailbox import Mailbox
from lesson.flower.participants import Participants, checked_latencies, in_simulated_time, on_the_wall, wait_for_nodes
from lesson.flower.replies import FieldNames, logger, tell, tell_clients, warn
from lesson.flower.watch import MAX_ROUNDS_WITHOUT_UPDATE, UpdateWatch
from lesson.learn.compression import level_of, make_compressor
from lesson.learn.executor import Executor
from lesson.learn.guards import InvalidUpdateError
from lesson.learn.lane import Lane
from lesson.learn.optimizers import ServerOptimizer
from lesson.learn.pipeline import Pipeline
from lesson.learn.remote import Received, as_tensor
from lesson.settings.sections import GuardSettings, ServerSettings, TrainingSettings, UploadSettings
from lesson.strategies.base import Merge, RoundPlan, ServerView, Strategy, Updates
from lesson.strategies.fedavg import FedAvg
from lesson.strategies.lesson import Lesson

Clock = Literal["wall", "virtual"]
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
    they would to FedAvg. On the wall clock, all clients evaluate the initial model, which warms them up, and the first
    round is a round of FedAvg, which measures their latencies, unless `latency_s` is given. `start` raises
    RunStoppedError if `max_rounds_without_update` rounds have aggregated nothing because updates failed; `result` then
    holds the result so far.

    Args:
        deadline_s: Deadline τ: the length of a round in seconds.
        strategy: Strategy of this package that replaces LESSON, such as `FedBuff(buffer_size=5)`.
        clock: "wall" measures times. "virtual" simulates them: clients train as soon as they can, and updates arrive
            after the latencies in `latency_s`, for example in Flower's simulation.
        latency_s: Latency of each client in seconds, in order of registration or by name. By default, measured on the
            wall clock, and drawn as for the paper's wireless clients on the virtual clock.
        first_round_timeout_s: Seconds to wait for the replies of clients whose latency has not been measured, as in the
            first round; by default, the `timeout` of `start`.
        lr_cap: Largest step size of a client; by default, that of tier 4.
        server: Server optimizer, and how updates are aggregated.
        guards: Which updates are rejected, and when clients are excluded.
        upload: Compression of updates; clients need the mod `compress_uploads`. `model_bits` has no effect, because
            bytes are measured. By default, clients send their models.
        min_available_nodes: Number of nodes to wait for before the first round.
        fraction_evaluate: Share of the connected clients that evaluate the model; 0 turns federated evaluation off, and
            with it the warm-up.
        evaluate_every: Number of rounds between two federated evaluations; 0 for only one after the last round.
        keep_best: Whether the result is the model with the best metric of `evaluate_fn`, instead of the last model.
        sends_index: Whether clients receive `update`, the index of a local training among those of the client, from 0.
        seed: Random seed of the strategy's choices.
        folder: Run folder with checkpoints, metrics, a recording and a report; by default, nothing is written.
        max_rounds_without_update: Number of failed rounds in a row after which the run stops.
        weighted_by_key: Metric with which clients report their weight.
        arrayrecord_key: Name of the record with the model in messages.
        configrecord_key: Name of the record with the config in messages.
        lr_key: Name of the step size in the config.
    """

    result: Result
    """The result of the last call of `start`, even if it raised an error."""

    def __init__(
        self,
        deadline_s: float = 20.0,
        strategy: Strategy | None = None,
        *,
        clock: Clock = "wall",
        latency_s: Sequence[float] | FloatArray | Mapping[str, float] | None = None,
        first_round_timeout_s: float | None = None,
        lr_cap: float | None = None,
        server: ServerSettings | None = None,
        guards: GuardSettings | None = None,
        upload: UploadSettings | None = None,
        min_available_nodes: int = 2,
        fraction_evaluate: float = 1.0,
        evaluate_every: int = 0,
        keep_best: bool = False,
        sends_index: bool = False,
        seed: int = 0,
        folder: RunFolder | None = None,
        max_rounds_without_update: int = MAX_ROUNDS_WITHOUT_UPDATE,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        lr_key: str = "lr",
    ) -> None:
        check_value("deadline_s", deadline_s, PositiveOrInf)
        check_value("first_round_timeout_s", first_round_timeout_s, Positive | None)
        check_value("lr_cap", lr_cap, PositiveOrInf | None)
        check_value("max_rounds_without_update", max_rounds_without_update, Count)
        check_value("min_available_nodes", min_available_nodes, Count)
        check_value("fraction_evaluate", fraction_evaluate, Share)
        check_value("evaluate_every", evaluate_every, Annotated[int, Field(ge=0, strict=True)])
        if clock not in ("wall", "virtual"):
            raise InputError(f"clock must be 'wall' or 'virtual', got {clock!r}")
        if isinstance(strategy, type) or not (strategy is None or hasattr(strategy, "open_round")):
            raise InputError(f"strategy must be an object of lesson.strategies, such as FedAvg(), got {strategy!r}")
        for name, given, kind in (
            ("server", server, ServerSettings),
            ("guards", guards, GuardSettings),
            ("upload", upload, UploadSettings),
            ("folder", folder, RunFolder),
        ):
            if not isinstance(given, kind | None):
                raise InputError(f"{name} must be {kind.__name__}(…), got {given!r}")
        self.deadline_s = float(deadline_s)
        self.strategy = strategy or Lesson(self.deadline_s)
        self.clock, self.latency_s = clock, checked_latencies(latency_s)
        self.first_round_timeout_s = first_round_timeout_s
        self.lr_cap = None if lr_cap is None else float(lr_cap)
        self.server, self.guards = server or ServerSettings(), guards or GuardSettings()
        self.upload = upload or UploadSettings()
        if (compressor := make_compressor(self.upload)) is not None:
            level_of(compressor, self.upload)  # raises for a level that it does not have
        self.min_available_nodes = min_available_nodes
        self.fraction_evaluate, self.evaluate_every = float(fraction_evaluate), evaluate_every
        self.keep_best, self.sends_index, self.seed, self.folder = keep_best, sends_index, seed, folder
        self.max_rounds_without_update = max_rounds_without_update
        self.fields = FieldNames(arrayrecord_key, configrecord_key, weighted_by_key, lr_key)

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
        check_value("num_rounds", num_rounds, Count)
        check_value("timeout", timeout, Positive)
        config = dict(train_config or {})
        lr = config.get(self.fields.lr)
        if not isinstance(lr, float | int) or isinstance(lr, bool) or not 0 < lr < math.inf:
            raise InputError(
                f"train_config must have '{self.fields.lr}', the step size of a client in tier 1, such as "
                f"ConfigRecord({{'{self.fields.lr}': 0.01}}), got {lr!r}"
            )
        if not isinstance(initial_arrays, ArrayRecord) or not len(initial_arrays):
            raise InputError(f"initial_arrays must be an ArrayRecord that holds a model, got {initial_arrays!r:.80}")
        if self.keep_best and evaluate_fn is None:
            raise InputError("keep_best requires evaluate_fn, whose metric says which model is the best")
        layout, begin_s = Layout.of(initial_arrays), time.monotonic()
        if not isinstance(steps := config.get(LOCAL_STEPS, 1), int) or steps < 1:
            raise InputError(f"train_config must have a whole number >= 1 as '{LOCAL_STEPS}', got {steps!r}")
        self.result = Result(arrays=initial_arrays)
        folder = self._open_folder(num_rounds, float(lr), steps, initial_arrays)
        if folder is not None and (result := folder.finished(layout, self.keep_best)) is not None:
            self.result = result
            return result
        nodes = wait_for_nodes(grid, self.min_available_nodes, timeout)
        participants = self._participants(nodes, folder)
        recorder = None if folder is None or self.clock == "virtual" else folder.recorder()
        mailbox = Mailbox(grid, recorder)
        try:
            pipeline, clients = self._pipeline(mailbox, participants, initial_arrays, config, timeout)
            world, evaluation = pipeline.loop.world, self._evaluation(pipeline, clients, evaluate_config, timeout)
            run = AppRun(
                pipeline,
                layout,
                clients,
                evaluation,
                self.result,
                num_rounds,
                self._watch(folder),
                evaluate_fn,
                self.keep_best,
                folder,
            )
            self.summary()
            if folder is None:
                run.run_rounds()
            else:
                folder.execute(run, len(participants.node_of))
            measured = world.are_measured if isinstance(world, WallWorld) else None
            tell_clients(run.fleet, self.deadline_s, run.rejected_by, measured)
            tell(f"{run.loop.round} rounds in {time.monotonic() - begin_s:.1f} s")
            run.check_end()
        except RunStoppedError as error:
            logger.error(f"error: {error}")
            raise
        return self.result

    def summary(self) -> None:
        """Log the strategy and its options."""
        tell(f"{type(self).__name__}: {self.strategy}, on the {self.clock} clock")

    def _open_folder(self, num_rounds: int, lr: float, local_steps: int, arrays: ArrayRecord) -> OpenFolder | None:
        """Return the run folder, if there is one. Raises InputError if it holds another run."""
        if self.folder is None:
            return None
        settings = partial(
            app_settings,
            self.strategy,
            getattr(self.strategy, "deadline_s", self.deadline_s),
            num_rounds=num_rounds,
            seed=self.seed,
            lr=lr,
            lr_cap=self._cap(lr),
            local_steps=local_steps,
            upload=self.upload.model_copy(update={"model_bits": 8.0 * num_bytes(arrays)}),
            server=self.server,
            guards=self.guards,
        )
        return OpenFolder(self.folder, lambda num_clients: settings(num_clients=num_clients))

    def _cap(self, lr: float) -> float:
        """Return the upper bound of the step size of a client."""
        return CAPPED_TIER * lr if self.lr_cap is None else self.lr_cap

    def _participants(self, nodes: Sequence[Node], folder: OpenFolder | None) -> Participants:
        num_before, path = (None, None) if folder is None else (folder.num_nodes, folder.nodes)
        if self.clock == "wall":
            return on_the_wall(nodes, self.latency_s, self.deadline_s, num_before, path)
        if num_before not in (None, len(nodes)):
            raise InputError(f"the run was started with {num_before} nodes, but {len(nodes)} are connected")
        return in_simulated_time(nodes, self.latency_s, self.deadline_s, self.seed)

    def _pipeline(
        self,
        mailbox: Mailbox,
        participants: Participants,
        arrays: ArrayRecord,
        config: Mapping[str, Any],
        timeout_s: float,
    ) -> tuple[Pipeline, GridClients]:
        """Return the pipeline of the round loop, and the clients that train for it."""
        layout, received, lr = Layout.of(arrays), Received(), float(config[self.fields.lr])
        try:
            initial = as_tensor(layout.vector(arrays))
        except InvalidUpdateError as error:
            raise InputError(f"initial_arrays must hold numbers: {error.detail}") from None
        optimizer = ServerOptimizer.of(self.server, self.strategy)
        lane = Lane(initial, TrainingSettings(learning_rate=lr, lr_cap=self._cap(lr)), optimizer, self.guards)
        if optimizer.note:
            tell(f"note: {optimizer.note}")
        uploads = Uploads.of(self.upload, self.seed, layout)
        clients = GridClients(
            mailbox,
            participants.node_of,
            participants.names,
            layout,
            lane,
            received,
            config,
            self.fields,
            participants.roster,
            participants.assumed_s,
            self.sends_index,
            uploads,
        )
        model_bits = 8.0 * num_bytes(arrays)
        fleet = replace(participants.fleet(config.get(LOCAL_STEPS, 1)), model_bits=model_bits)
        if uploads is not None:
            fleet = replace(fleet, level=uploads.level, level_bits=uploads.level_bits(model_bits))
        strategy, world = self.strategy, self._world(fleet, clients, timeout_s)
        if self.clock == "wall" and self.latency_s is None:
            strategy = MeasuredFirst(strategy)
        exclude_after = self.guards.exclude_after_rejections
        loop = RoundLoop(strategy, world, seed=self.seed, exclude_after=exclude_after, tell=warn)
        clients.last_received = loop.ledger.last_received
        return Pipeline(loop, lane, Executor(received, None)), clients

    def _world(self, fleet: Fleet, clients: GridClients, timeout_s: float) -> WallWorld | RemoteWorld:
        if self.clock == "virtual":
            return RemoteWorld(NominalWorld(fleet), clients, warn, counts_bytes=True, timeout_s=timeout_s)
        return WallWorld(
            fleet,
            clients,
            tell,
            warn=warn,
            timeout_s=timeout_s,
            first_timeout_s=self.first_round_timeout_s,
            first_is_cold=True,
        )

    def _evaluation(
        self, pipeline: Pipeline, clients: GridClients, config: ConfigRecord | None, timeout_s: float
    ) -> FederatedEvaluation:
        world = pipeline.loop.world
        return FederatedEvaluation(
            clients,
            dict(config or {}),
            self.result.evaluate_metrics_clientapp,
            self.evaluate_every,
            self.fraction_evaluate,
            timeout_s,
            world.usual_patience_s if isinstance(world, WallWorld) else None,
            self.deadline_s,
            self.seed,
        )

    def _watch(self, folder: OpenFolder | None) -> UpdateWatch:
        again = "start the run again" if folder is None else "resume the run with resume=True"
        return UpdateWatch(self.max_rounds_without_update, f"check the logs of the clients, fix the cause and {again}")

    def configure_train(self, *_: Any, **__: Any) -> NoReturn:
        """Raise InputError: rounds overlap, so a strategy that wraps this one would run rounds of FedAvg instead."""
        raise InputError(
            "LessonStrategy cannot be wrapped by another strategy, because its rounds overlap: call its own start; for "
            "differential privacy, add a mod to the client's train function, such as @app.train(mods=[LocalDpMod(…)])"
        )

    aggregate_train = configure_evaluate = aggregate_evaluate = configure_train

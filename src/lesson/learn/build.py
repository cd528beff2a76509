"""Builds a run that trains models, as its settings prescribe."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from lesson.clock.loop import RoundLoop
from lesson.clock.records import RoundRecord
from lesson.clock.simulate import make_loop
from lesson.core.arrays import FloatArray, IntArray
from lesson.fleet.fleet import Fleet, find_clients, fleet_of
from lesson.learn.backend import Backend
from lesson.learn.cpu import CpuBackend
from lesson.learn.evaluation import Evaluator
from lesson.learn.guards import NormGuard
from lesson.learn.metric import Metric
from lesson.learn.model_server import GlobalModel, ModelServer
from lesson.learn.optimizers import ServerOptimizer
from lesson.learn.scores import ClientScores, Known, Pending, PendingScore, Score
from lesson.learn.simulated_clients import SimulatedClients
from lesson.learn.task import Task
from lesson.learn.workload import Workload, make_workload
from lesson.settings.settings import Settings
from lesson.strategies import Strategy, fleet_for

NEEDED_ACCURACY = "client_accuracy"


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """A run that trains models: its round loop, model server and evaluator."""

    loop: RoundLoop
    server: ModelServer
    evaluator: Evaluator
    fleet: Fleet
    """The clients with the server's first estimates of their times, before estimation errors; on the wall clock, with
    the times measured so far."""
    on_wall_clock: bool = False
    """Whether its times are measured on real clients, rather than simulated."""
    after_round: Callable[[RoundRecord], Mapping[str, Any]] = lambda _: {}
    """Called at the end of each round; returns additional fields for its line of metrics."""
    evaluates_itself: ClassVar[bool] = False

    @property
    def metric(self) -> Metric:
        """The metric by which models are compared."""
        return self.evaluator.metric

    @property
    def num_classes(self) -> int | None:
        """Number of classes; None for a task without classes."""
        return self.evaluator.num_classes

    @property
    def is_cross_entropy(self) -> bool:
        """Whether the loss is the cross-entropy of the targets."""
        return self.evaluator.is_cross_entropy

    @property
    def model(self) -> GlobalModel:
        """The newest version of the global model."""
        return self.server.model(self.loop.version)

    def begin_score(self) -> PendingScore:
        """Evaluate the newest version on the test data as soon as it exists, without waiting for the result."""
        num_samples = self.evaluator.num_test_samples
        return self.server.evaluate(self.loop.version, self.evaluator.begin_score, self._evaluation_steps(num_samples))

    def begin_client_scores(self) -> Pending[ClientScores]:
        """Evaluate the newest version on the samples of each client as soon as it exists."""
        cost = self._evaluation_steps(int(self.evaluator.workload.holdings.num_samples.sum()))
        return self.server.evaluate(self.loop.version, lambda model: Known(self.evaluator.client_scores(model)), cost)

    def _evaluation_steps(self, num_samples: int) -> float:
        """Return the cost of an evaluation in local steps; a step also has a backward pass, twice as expensive."""
        return num_samples / self.evaluator.workload.batch_size / 3

    def final_score(self) -> Score:
        """Return the score of the newest version on the test data."""
        return self.evaluator.score(self.model)

    def class_accuracy(self) -> tuple[FloatArray, tuple[str, ...]]:
        """Return the test accuracy per class and the names of the classes, if they have any."""
        return self.evaluator.class_accuracy(self.model), self.evaluator.class_names

    def own_accuracy(self, clients: IntArray, by_class: FloatArray) -> FloatArray:
        """Return the accuracy on test data with each client's own class distribution; NaN for a client without data."""
        shares = self.evaluator.class_shares(clients, len(by_class))
        accuracy = np.where(shares > 0, shares * by_class, 0.0).sum(axis=1)  # classes that a client lacks are ignored
        accuracy[shares.sum(axis=1) == 0] = np.nan
        return np.asarray(accuracy)

    def parameters(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the exchanged values of the newest version by name, in the model's own shapes."""
        return dict(self.evaluator.workload.template.named_arrays(self.model.vector))

    def close(self) -> None:
        """Release all threads, processes and GPU memory."""
        self.server.close()
        self.evaluator.close()


def build(settings: Settings, task: Task, strategy: Strategy, num_threads: int | None = None) -> TrainingRun:
    """Return a run of settings that `runs/resolve.py` has resolved."""
    clients = find_clients(settings)
    workload = make_workload(settings, task, NEEDED_ACCURACY in strategy.needs, clients.num_samples)
    backend = _backend(workload, settings, num_threads)
    evaluator = Evaluator(workload, backend)
    server = ModelServer(
        workload.initial_vector(),
        SimulatedClients(workload, backend, settings.run.trainer),
        settings.training,
        ServerOptimizer.of(settings.server, strategy),
        NormGuard(settings.guards),
        signals=evaluator.signals(),
        window=backend.window,
    )
    fleet = fleet_of(settings, clients, workload.holdings.num_samples)
    fleet = fleet_for(settings.strategy.name, fleet, settings.strategy.deadline_s)
    loop = make_loop(strategy, fleet, model_server=server, seed=settings.run.seed, settings=settings)
    return TrainingRun(loop, server, evaluator, fleet)


def _backend(workload: Workload, settings: Settings, num_threads: int | None) -> Backend:
    """Return the backend of the device that holds the workload's data."""
    if workload.device == "cpu":
        return CpuBackend(workload, num_threads)
    from lesson.learn.cuda.backend import CudaBackend

    return CudaBackend(workload, settings.run.precision)  # type: ignore[arg-type]  # not "auto": it is resolved

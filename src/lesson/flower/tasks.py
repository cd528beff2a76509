"""Apps whose clients train a task of this package, such as MNIST split among them, exactly as `lesson run` does."""

from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, MetricRecord

from lesson.flower.app_run import EvaluateFn
from lesson.flower.arrays import Layout
from lesson.learn.cpu import CpuBackend
from lesson.learn.divergence import NewestCohort
from lesson.learn.evaluation import Evaluator
from lesson.learn.lane import GlobalModel
from lesson.learn.process import configure_process
from lesson.learn.remote import as_tensor, evaluate_on_client, first_arrays, train_update
from lesson.learn.task import Task
from lesson.learn.tasks import task_of
from lesson.learn.workload import make_workload
from lesson.settings.settings import Settings


def initial_arrays(settings: Settings, task: Task | None = None) -> ArrayRecord:
    """Return the model with which `lesson run` starts; `task` replaces the one that the settings name."""
    arrays = first_arrays(task_of(settings, given=task), settings.run.seed)
    return ArrayRecord({name: Array(values) for name, values in arrays.items()})


def evaluate_on_server(settings: Settings, task: Task | None = None) -> EvaluateFn:
    """Return an `evaluate_fn` that evaluates models on the test data of a task."""
    workload = make_workload(_on_cpu(settings), task_of(settings, given=task))
    evaluator = Evaluator(workload, CpuBackend(workload))

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        vector = as_tensor(Layout.of(arrays).vector(arrays))
        score = evaluator.score(GlobalModel(vector, NewestCohort(None, server_round, "")))
        return MetricRecord({"loss": score.loss, **score.values})

    return evaluate


class TaskClient:
    """Trains and evaluates models on a client's share of a task.

    Local training is bit-identical to that of `lesson run` with `trainer = "reference"`, if the strategy is
    `LessonStrategy(…, sends_index=True)`: a client's minibatches depend on the number of its local trainings.

    Args:
        settings: Settings of the data and of local training; `fleet.num_clients` is the number of shares.
        client: Number of the client, from 0.
        task: Replaces the task that the settings name.
    """

    def __init__(self, settings: Settings, client: int, task: Task | None = None) -> None:
        configure_process()
        self.client, self._settings = client, settings
        self._workload = make_workload(_on_cpu(settings), task_of(settings, given=task))

    @property
    def num_samples(self) -> int:
        """Number of training samples of the client."""
        return int(self._workload.holdings.num_samples[self.client])

    def train(self, arrays: ArrayRecord, config: Mapping[str, Any]) -> ArrayRecord:
        """Return the model after one local training, as the config of a training message asks for."""
        layout, usual = Layout.of(arrays), self._settings.training.local_steps
        vector = train_update(
            self._workload,
            layout.vector(arrays),
            client=self.client,
            index=int(config["update"]),
            lr=float(config["lr"]),
            local_steps=int(config.get("local-steps", usual)),
        )
        return layout.record(vector)

    def evaluate(self, arrays: ArrayRecord) -> dict[str, float]:
        """Return the loss of a model on the client's samples and, if the task has it, the accuracy."""
        _, metrics = evaluate_on_client(self._workload, Layout.of(arrays).vector(arrays), self.client)
        return metrics


def _on_cpu(settings: Settings) -> Settings:
    return settings.model_copy(update={"run": settings.run.model_copy(update={"device": "cpu"})})

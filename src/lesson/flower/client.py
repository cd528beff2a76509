"""A client that trains on its part of a task: a built-in task, which the run config names, or its own task.

A client never imports or unpickles what a server names: its own task is given in its own code. For any other local
training, write a ClientApp as you would for Flower's own strategies, and read the step size `lr` from the config that
the server sends.
"""

import json
import time
import uuid
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from lesson.flower.arrays import Layout, Vector
from lesson.flower.config import check_config, settings_of
from lesson.flower.profile import answers_profile
from lesson.flower.times import report_times
from lesson.learn.build import NEEDED_ACCURACY
from lesson.learn.process import configure_process
from lesson.learn.remote import evaluate_on_client, train_update
from lesson.learn.task import Task
from lesson.learn.tasks import task_of
from lesson.learn.workload import Workload, make_workload
from lesson.settings.settings import Settings
from lesson.strategies import STRATEGIES, make_strategy

TIMED, ENOUGH_S = 3, 5.0
"""For a profile, local training is timed up to TIMED times, but not again after a total of ENOUGH_S seconds."""


def make_client_app(task: Task | Callable[..., Task] | None = None) -> ClientApp:
    """Return a ClientApp that trains for any strategy of this package, evaluates models and reports its latency.

    Args:
        task: Your own task, or a function that returns it and is called with the options in [task]; by default, the
            built-in task that `dataset` in the run config names. Server and clients must have the same task.
    """
    app, client_task = ClientApp(mods=[report_times]), _ClientTask(task)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        (model,), (config,) = message.content.array_records.values(), message.content.config_records.values()
        arrays = Layout.of(model).record(client_task.train(context, model, dict(config)))
        metrics = MetricRecord({"num-examples": client_task.num_samples(context)})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        (model,) = message.content.array_records.values()
        count, scores = client_task.evaluate(context, model)
        metrics = MetricRecord({"num-examples": count, **scores})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    answers_profile(app, client_task.measure)
    return app


class _ClientTask:
    """The task of a client app. Its workload is cached: in Flower's simulation, one process serves many clients."""

    def __init__(self, task: Task | Callable[..., Task] | None, token: str = "") -> None:
        self._task, self._token = task, token or uuid.uuid4().hex
        self._made: tuple[tuple[str, int], Workload] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to copy the app to another process, where all copies of it share one workload."""
        return _restored, (self._token, self._task)

    def train(self, context: Context, model: ArrayRecord, config: dict[str, Any]) -> Vector:
        """Return the model after one local training as a vector.

        Sleeps for `slow-s` seconds per minibatch, to simulate a slow client.
        """
        vector = train_update(
            self._of(context),
            Layout.of(model).vector(model),
            client=int(context.node_config["partition-id"]),
            index=int(config["update"]),
            lr=float(config["lr"]),
            local_steps=int(config["local-steps"]),
            batches=int(config["batches"]),
        )
        slow_s = float(context.node_config.get("slow-s", 0.0))
        time.sleep(slow_s * int(config["local-steps"]) * int(config["batches"]))
        return vector

    def evaluate(self, context: Context, model: ArrayRecord) -> tuple[int, dict[str, float]]:
        """Return how many samples this client evaluates a model on, its loss and, if the task has it, its accuracy."""
        vector = Layout.of(model).vector(model)
        return evaluate_on_client(self._of(context), vector, int(context.node_config["partition-id"]))

    def measure(self, context: Context, model: ArrayRecord) -> tuple[list[float], int]:
        """Return the durations of the usual local training in seconds, and this client's number of samples."""
        training, num_samples = _settings_of(context).training, self.num_samples(context)
        steps = training.local_steps
        if training.local_epochs:
            steps = training.local_epochs * -(-num_samples // training.batch_size)
        config = {"update": 0, "lr": 0.0, "local-steps": steps, "batches": 1}
        took_s: list[float] = []
        while len(took_s) < TIMED and sum(took_s) < ENOUGH_S:
            begin_s = time.perf_counter()
            self.train(context, model, config)
            took_s.append(time.perf_counter() - begin_s)
        return took_s, num_samples

    def num_samples(self, context: Context) -> int:
        """Return how many samples this client holds."""
        return int(self._of(context).holdings.num_samples[int(context.node_config["partition-id"])])

    def _of(self, context: Context) -> Workload:
        key = _config_text(context), int(context.node_config["num-partitions"])
        made = self._made
        if made is None or made[0] != key:
            made = self._made = key, self._make(*key)
        return made[1]

    def _make(self, config: str, num_clients: int) -> Workload:
        configure_process()
        settings = _settings(config, num_clients)
        chosen, holding_out = settings.strategy, False
        if chosen.name in STRATEGIES:  # a client imports nothing that a server names
            holding_out = NEEDED_ACCURACY in make_strategy(chosen.name, chosen.deadline_s, chosen.options).needs
        return make_workload(settings, task_of(settings, given=self._task), holding_out)


_restored_tasks: dict[str, _ClientTask] = {}


def _restored(token: str, task: Task | Callable[..., Task] | None) -> _ClientTask:
    """Return the copy in this process of a client app's task; Flower's simulation copies the app for every message."""
    return _restored_tasks.setdefault(token, _ClientTask(task, token))


def _settings_of(context: Context) -> Settings:
    return _settings(_config_text(context), int(context.node_config["num-partitions"]))


def _config_text(context: Context) -> str:
    return json.dumps(dict(context.run_config), sort_keys=True)


@lru_cache(maxsize=1)
def _settings(config: str, num_clients: int) -> Settings:
    return settings_of(check_config(json.loads(config)), num_clients)

"""A client that trains the paper's network on its part of a data set of this package.

For your own data and model, write a ClientApp as you would for Flower's own strategies, and read the step size `lr`
from the config that the server sends.
"""

import json
import time
from functools import lru_cache
from typing import Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from lesson.clock.faults import CorruptedUploads
from lesson.flower.arrays import Layout, Vector
from lesson.flower.config import check_config, settings_of
from lesson.flower.profile import answers_profile
from lesson.learn.build import dataset_of, task_of
from lesson.learn.process import configure_process
from lesson.learn.remote import train_update
from lesson.learn.task import Task
from lesson.settings.settings import Settings

TIMED, ENOUGH_S = 3, 5.0
"""For a profile, local training is timed up to TIMED times, but not again after a total of ENOUGH_S seconds."""


def make_client_app() -> ClientApp:
    """Return a ClientApp that trains for any strategy of this package and reports its latency."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        (model,), (config,) = message.content.array_records.values(), message.content.config_records.values()
        told: dict[str, Any] = dict(config)
        arrays = Layout.of(model).record(_train(context, model, told, _faults_of(context)))
        client = int(context.node_config["partition-id"])
        metrics = MetricRecord({"num-examples": int(_task_of(context).holdings.num_samples[client])})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    answers_profile(app, _measure)
    return app


def _train(
    context: Context, model: ArrayRecord, config: dict[str, Any], faults: CorruptedUploads | None = None
) -> Vector:
    """Return the model after one local training as a vector, corrupted by the faults of this upload.

    Sleeps for `slow-s` seconds per minibatch, to simulate a slow client.
    """
    vector = train_update(
        _task_of(context),
        Layout.of(model).vector(model),
        client=int(context.node_config["partition-id"]),
        index=int(config["update"]),
        lr=float(config["lr"]),
        local_steps=int(config["local-steps"]),
        batches=int(config["batches"]),
        faults=faults,
    )
    slow_s = float(context.node_config.get("slow-s", 0.0))
    time.sleep(slow_s * int(config["local-steps"]) * int(config["batches"]))
    return vector


def _measure(context: Context, model: ArrayRecord) -> tuple[list[float], int]:
    """Return the durations of the usual local training in seconds, and this client's number of samples."""
    task, client = _task_of(context), int(context.node_config["partition-id"])
    settings = _settings_of(context)
    steps = settings.training.local_steps
    if settings.training.local_epochs:
        steps = settings.training.local_epochs * -(-int(task.holdings.num_samples[client]) // task.batch_size)
    config = {"update": 0, "lr": 0.0, "local-steps": steps, "batches": 1}
    took_s: list[float] = []
    while len(took_s) < TIMED and sum(took_s) < ENOUGH_S:
        begin_s = time.perf_counter()
        _train(context, model, config)
        took_s.append(time.perf_counter() - begin_s)
    return took_s, int(task.holdings.num_samples[client])


def _settings_of(context: Context) -> Settings:
    return _settings(json.dumps(dict(context.run_config), sort_keys=True), int(context.node_config["num-partitions"]))


def _faults_of(context: Context) -> CorruptedUploads | None:
    """Return the faults to inject into uploads; None if there are none."""
    settings = _settings_of(context)
    return CorruptedUploads.of(settings.faults, settings.fleet.num_clients, settings.run.seed)


def _task_of(context: Context) -> Task:
    return _task(json.dumps(dict(context.run_config), sort_keys=True), int(context.node_config["num-partitions"]))


@lru_cache(maxsize=1)
def _settings(config: str, num_clients: int) -> Settings:
    return settings_of(check_config(json.loads(config)), num_clients)


@lru_cache(maxsize=1)
def _task(config: str, num_clients: int) -> Task:
    """Return the learning task. It is cached: in Flower's simulation, one process serves many clients."""
    configure_process()
    settings = _settings(config, num_clients)
    return task_of(settings, dataset_of(settings.data.dataset, None))

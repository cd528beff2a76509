"""FedAsync, FedBuff, FedCompass and FedQueue of APPFL, and FedCompass as its authors first published it."""

import importlib
import types
from typing import Any
from unittest import mock

import torch

from servers.inputs import (
    ALPHA,
    BUFFER,
    COMPASS_ALPHA,
    LATEST_FACTOR,
    NOW,
    POLYNOMIAL,
    QUEUE_BETA,
    STALENESS,
    STEP_S,
    STEPS,
    Numbers,
)
from servers.loading import checkout, linear, load


class PlainScheduler:
    """Base class of the authors' scheduler, without communication."""

    def __init__(self, scheduler_configs: Any, aggregator: Any, logger: Any) -> None:
        self.scheduler_configs, self.aggregator, self.logger = scheduler_configs, aggregator, logger


def appfl_server(kind: str, now: float, **settings: object) -> Any:
    """Return an aggregator of APPFL whose version is the largest staleness."""
    configuration = importlib.import_module("omegaconf").DictConfig(settings)
    server = getattr(load("appfl.algorithm.aggregator"), kind)(linear(now), configuration)
    server.global_step = max(STALENESS)
    return server


def appfl_mixed(function: str, settings: dict[str, float], **others: object) -> Numbers:
    """Return α_t of APPFL's FedAsync at every staleness."""
    mixed = []
    for staleness in STALENESS:
        staleness_fn = {"staleness_fn": function, "staleness_fn_kwargs": settings}
        server = appfl_server("FedAsyncAggregator", 0.0, alpha=ALPHA, **staleness_fn, **others)
        server.client_step["it"] = server.global_step - staleness
        mixed.append(float(server.aggregate("it", {"weight": torch.ones(1, 1)})["weight"]))
    return mixed


def appfl_buffered() -> Numbers:
    """Return the global model of APPFL's FedBuff; its clients send models.

    With α = 1 and one client, only staleness scales the updates.
    """
    staleness_fn = {"staleness_fn": "polynomial", "staleness_fn_kwargs": POLYNOMIAL}
    server = appfl_server("FedBuffAggregator", NOW, alpha=1.0, K=len(BUFFER), **staleness_fn)
    for client, arrival in enumerate(BUFFER):
        server.client_step[client] = server.global_step - arrival.staleness
        new = server.aggregate(client, {"weight": torch.full((1, 1), arrival.model)})
    return [float(new["weight"])]


def compass_steps(module: Any) -> Numbers:
    """Return the numbers of local steps that a Compass scheduler assigns to clients, the fastest first, at time 0."""
    steps = {"max_local_steps": STEPS["max_steps"], "min_local_steps": STEPS["min_steps"]}
    settings = types.SimpleNamespace(**steps, latest_time_factor=LATEST_FACTOR, speed_momentum=0.9)
    clock, timers = mock.MagicMock(time=lambda: 0.0), mock.MagicMock()
    with mock.patch.object(module, "time", clock), mock.patch.object(module, "threading", timers):
        scheduler = module.CompassScheduler(settings, mock.MagicMock(), mock.MagicMock())
        scheduler.start_time = 0.0
        for client, step_s in enumerate(STEP_S):
            scheduler.client_info[client] = {"speed": step_s}
            scheduler._assign_group(client)
    return [float(info["local_steps"]) for info in scheduler.client_info.values()]


def aggregated(server: Any, sends_updates: bool, **others: object) -> Numbers:
    """Return the global model of an aggregator; clients send models or updates, base minus model."""
    sent = {
        client: {"weight": torch.full((1, 1), each.base - each.model if sends_updates else each.model)}
        for client, each in enumerate(BUFFER)
    }
    staleness = {client: each.staleness for client, each in enumerate(BUFFER)}
    return [float(server.aggregate(local_models=sent, staleness=staleness, **others)["weight"])]


def compass_settings(sends_updates: bool) -> dict[str, object]:
    """Return the settings of a FedCompass aggregator."""
    function = {"staleness_fn": "polynomial", "staleness_fn_kwargs": POLYNOMIAL}
    return {"alpha": COMPASS_ALPHA, "num_clients": len(BUFFER), "gradient_based": sends_updates, **function}


def appfl_compass_steps() -> Numbers:
    """Return the numbers of local steps that APPFL assigns."""
    return compass_steps(load("appfl.algorithm.scheduler.compass_scheduler"))


def appfl_compass_merged(sends_updates: bool) -> Numbers:
    """Return the global model of APPFL's FedCompass."""
    return aggregated(appfl_server("FedCompassAggregator", NOW, **compass_settings(sends_updates)), sends_updates)


def appfl_queue_merged(sends_updates: bool, function: str = "harmonic") -> Numbers:
    """Return the global model of APPFL's FedQueue."""
    settings = {"staleness_fn": function, "staleness_fn_kwargs": {"beta": QUEUE_BETA}, "gradient_based": sends_updates}
    return aggregated(appfl_server("FedQueueAggregator", NOW, **settings), sends_updates, local_steps={})


def original_compass_steps() -> Numbers:
    """Return the numbers of local steps that the authors' first code assigns."""
    stubs = {"appfl.scheduler": types.SimpleNamespace(BaseScheduler=PlainScheduler)}
    with checkout("fedcompass", "src/appfl/scheduler", stubs=stubs) as import_module:
        return compass_steps(import_module("compass_scheduler"))


def original_compass_merged() -> Numbers:
    """Return the global model of the authors' first code; clients send updates."""
    stubs = {"appfl.aggregator": types.SimpleNamespace(BaseAggregator=object)}
    with checkout("fedcompass", "src/appfl/aggregator", stubs=stubs) as import_module:
        server_type = import_module("fedcompass_aggregator").FedCompassAggregator
        return aggregated(server_type(linear(NOW), compass_settings(True), mock.MagicMock()), True)

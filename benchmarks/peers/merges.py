"""Aggregation of single-number models by the server code of other packages.

Modules that a package imports but these cases do not use (torchvision, grpc, …) need not be installed: mocks replace
them.
"""

import contextlib
import dataclasses
import functools
import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn

STALENESS = list(range(11))
ALPHA = 0.6
POLYNOMIAL = {"a": 0.5}
HINGE = {"a": 10.0, "b": 4.0}
UNUSED = {"grpc", "opacus", "pynvml", "tensorflow", "torchvision", "wandb"}
"""Modules that peers import but these cases do not use."""
Numbers = list[float]


@dataclass(frozen=True)
class Arrival:
    """A client's model, the model that it started from, and its staleness."""

    staleness: int
    base: float
    model: float


BUFFER = [Arrival(0, 10.0, 13.0), Arrival(1, 8.0, 14.0), Arrival(3, 4.0, 16.0)]
"""Arrivals at a global model of 10; their updates are 3, 6 and 12."""
NOW = 10.0


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import hook that replaces missing modules in `UNUSED` by mocks."""

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        unused = name.partition(".")[0] in UNUSED
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if unused else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return mock.MagicMock(__spec__=spec, __path__=[], __name__=spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def hashable(made: type | None = None, /, **options: Any) -> Any:
    """Apply `dataclass`, and make FLSim's classes hashable, as Python 3.11 and later require of default values."""
    if made is None:
        return functools.partial(hashable, **options)
    return dataclass(**options | ({"unsafe_hash": True} if made.__module__.startswith("flsim.") else {}))(made)


@contextlib.contextmanager
def standing_in() -> Iterator[None]:
    """Let peers be imported if unused modules are missing, or if they were written for Python before 3.11."""
    finder = StandIns()
    sys.meta_path.append(finder)
    try:
        with mock.patch.object(dataclasses, "dataclass", hashable), warnings.catch_warnings(action="ignore"):
            yield
    finally:
        sys.meta_path.remove(finder)


def load(name: str) -> ModuleType:
    """Import a module of a peer."""
    with standing_in():
        return importlib.import_module(name)


def linear(value: float) -> nn.Linear:
    """Return a model with a single parameter of this value."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def fedlab_mixed(strategy: str, settings: dict[str, float]) -> Numbers:
    """Return α_t of FedLab's asynchronous server at every staleness."""
    server_type = load("fedlab.contrib.algorithm.basic_server").AsyncServerHandler
    mixed = []
    for staleness in STALENESS:
        server = server_type(linear(0.0), global_round=99, logger=mock.MagicMock())
        server.setup_optim(ALPHA, strategy, **settings)
        server.round = max(STALENESS)
        server.load([torch.ones(1), torch.tensor([float(server.round - staleness)])])
        mixed.append(float(server.model_parameters))
    return mixed


def flgo_models(values: Sequence[float], staleness: Sequence[int]) -> list[Any]:
    """Return models of FLGo that are marked with the round they come from."""
    base = load("flgo.utils.fmodule").FModule

    class Number(base):  # type: ignore[misc, valid-type]
        def __init__(self, value: float = 0.0) -> None:
            super().__init__()
            self.value = nn.Parameter(torch.tensor([value]))

    models = [Number(value) for value in values]
    for model, stale in zip(models, staleness, strict=True):
        model._round = max(STALENESS) - stale
    return models


def flgo_merged(algorithm: str, models: list[Any], **settings: object) -> float:
    """Return FLGo's global model, initially the first of these, after the others have arrived at the same time."""
    server_type = load(f"flgo.algorithm.{algorithm}").Server
    server = server_type.__new__(server_type)
    vars(server).update(
        settings, model=models[0], current_round=max(STALENESS), aggregation_option="uniform", clients=[]
    )
    assert server.package_handler({"__cid": list(range(1, len(models))), "model": models[1:]})
    return float(server.model.value.item())


def flgo_mixed(flag: str) -> Numbers:
    """Return α_t of FLGo's FedAsync at every staleness."""
    settings = {"poly_a": POLYNOMIAL["a"], "hinge_a": HINGE["a"], "hinge_b": HINGE["b"]}
    return [
        flgo_merged("fedasync", flgo_models([0.0, 1.0], [0, staleness]), alpha=ALPHA, flag=flag, **settings)
        for staleness in STALENESS
    ]


def flgo_together() -> Numbers:
    """Return the global model of FLGo's FedAsync when two models arrive at the same time."""
    return [flgo_merged("fedasync", flgo_models([0.0, 1.0, 2.0], [0, 0, 0]), alpha=ALPHA, flag="constant")]


def flgo_buffered() -> Numbers:
    """Return the global model of FLGo's FedBuff; its clients send updates."""
    models = flgo_models([NOW] + [each.model - each.base for each in BUFFER], [0] + [each.staleness for each in BUFFER])
    return [flgo_merged("fedbuff", models, eta=1.0, buffer=[], buffer_ratio=1.0, num_clients=len(BUFFER))]


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


def nvflare_buffered() -> Numbers:
    """Return the global model of NVIDIA FLARE's FedBuff for edge devices; versions count from 1."""
    manager = load("nvflare.edge.assessors.buff_model_manager").BuffModelManager(len(BUFFER), staleness_weight=True)
    dxo, context = load("nvflare.apis.dxo"), load("nvflare.apis.fl_context").FLContext()
    manager.fire_event = mock.MagicMock()
    manager.initialize_model(dxo.DXO(dxo.DataKind.WEIGHTS, data={"value": [NOW]}), context)
    for _ in range(max(each.staleness for each in BUFFER) + 1):
        manager.generate_new_model(context)  # without updates, only the version changes
        manager.current_model.data["value"] = [NOW]
    update_type = load("nvflare.edge.mud").ModelUpdate
    updates = {}
    for client, each in enumerate(BUFFER):
        change = dxo.DXO(dxo.DataKind.WEIGHT_DIFF, data={"dict": {"value": [each.model - each.base]}, "count": 1})
        base = manager.current_model_version - each.staleness
        updates[base] = update_type(base, change.to_shareable(), {f"device {client}": 1.0})
    manager.process_updates(updates, context)
    return [float(manager.current_model.data["value"][0])]


def flsim_scales(**settings: object) -> Numbers:
    """Return s(d) of FLSim's asynchronous trainer at every staleness."""
    module = load("flsim.utils.async_trainer.async_staleness_weights")
    weight = module.PolynomialStalenessWeight(exponent=0.5, **settings)
    return [float(weight.weight(staleness)) for staleness in STALENESS]


class Held:
    """A model in the form that FLSim expects."""

    def __init__(self, value: float) -> None:
        self.module = linear(value)

    def fl_get_module(self) -> nn.Module:
        """Return the module."""
        return self.module


def flsim_server(kind: str, now: float, **settings: object) -> Any:
    """Return an aggregator of FLSim."""
    server = getattr(load("flsim.optimizers.async_aggregators"), kind)(global_model=Held(now), **settings)
    server.zero_grad()
    return server


def flsim_arrives(server: Any, arrival: Arrival, weight: float) -> float:
    """Return the global model after an arrival; FLSim's updates point from the client's model to its base."""
    delta = Held(arrival.base - arrival.model)
    server.on_client_training_end(client_delta=delta, final_local_model=Held(arrival.model), weight=weight)
    return float(server.global_model.fl_get_module().weight.item())


def flsim_mixed() -> Numbers:
    """Return α_t of FLSim's FedAsync at every staleness, with scales set to 1 at d = 0."""
    way = load("flsim.optimizers.async_aggregators").AsyncAggregationType.fed_async_aggregation
    servers = [flsim_server("FedAvgWithLRAsyncAggregator", 0.0, lr=ALPHA, aggregation_type=way) for _ in STALENESS]
    arrivals = [Arrival(staleness, 0.0, 1.0) for staleness in STALENESS]
    return list(map(flsim_arrives, servers, arrivals, flsim_scales(avg_staleness=0)))


def flsim_buffered() -> Numbers:
    """Return the global model of FLSim's FedBuff, with staleness scales set to 1 at d = 0."""
    server = flsim_server("FedAvgWithLRFedBuffAggregator", NOW, lr=1.0, buffer_size=len(BUFFER))
    scales = dict(zip(STALENESS, flsim_scales(avg_staleness=0), strict=True))
    return [flsim_arrives(server, arrival, scales[arrival.staleness]) for arrival in BUFFER][-1:]


def fedscale_buffered() -> Numbers:
    """Return the global model of FedScale's FedBuff; its clients send models."""
    server_type = load("fedscale.cloud.aggregation.async_aggregator").AsyncAggregator
    server = server_type.__new__(server_type)
    server.round, server.tasks_round, server.aggregation_denominator = max(STALENESS), len(BUFFER), 0
    server.client_task_model_version = {who: server.round - each.staleness for who, each in enumerate(BUFFER)}
    server.model_wrapper = mock.MagicMock()
    for who, each in enumerate(BUFFER):
        server.model_in_update = who + 1
        server.update_weight_aggregation({"client_id": who, "update_weight": [np.array([each.model])]})
    return [float(server.model_wrapper.set_weights.call_args.args[0][0][0])]


def flgo_tiers() -> Numbers:
    """Return the probabilities of FLGo's TiFL for tiers of accuracy 0.9, 0.5, 0.7 and, without credits, 0.6."""
    server_type = load("flgo.algorithm.TiFL").Server
    server = server_type.__new__(server_type)
    pairs = [(0.9, 5), (0.5, 5), (0.7, 5), (0.6, 0)]
    server.tiers = {tier: {"accuracy": accuracy, "credit": credit} for tier, (accuracy, credit) in enumerate(pairs)}
    server.change_probs()
    return [float(tier["prob"]) for tier in server.tiers.values()]

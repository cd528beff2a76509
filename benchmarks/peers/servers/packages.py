"""FedAsync, FedBuff and TiFL of FedLab, FLGo, NVIDIA FLARE, FLSim and FedScale."""

from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn

from servers.inputs import ALPHA, BUFFER, HINGE, NOW, POLYNOMIAL, STALENESS, Arrival, Numbers
from servers.loading import linear, load


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

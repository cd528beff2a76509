"""FedAsync, FedBuff, CA²FL, FADAS and Malenia SGD of repositories that are not packages."""

import asyncio
import types
from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch
from torch.utils.data import DataLoader, TensorDataset

from servers.inputs import (
    ADAPTIVE,
    ALPHA,
    BUFFER,
    CACHED,
    DELAYS,
    HINGE,
    MEANS,
    NOW,
    NUM_CLIENTS,
    POLYNOMIAL,
    SERIES,
    SERIES_LR,
    SERIES_S,
    STALENESS,
    Numbers,
)
from servers.loading import checkout, linear

TOGETHER = [update for buffer in CACHED for update in buffer.items()]


def afl_lib_server(module: Any, now: float, **settings: object) -> Any:
    """Return a server of AFL-Lib with a single-number model; the constructor would load data and models."""
    server = module.Server.__new__(module.Server)
    server.args = types.SimpleNamespace(alg=module.__name__.rpartition(".")[2], **settings)
    clients = [types.SimpleNamespace(id=client, status=None) for client in range(NUM_CLIENTS)]
    vars(server).update(settings, model=linear(now), clients=clients, staleness=[0] * NUM_CLIENTS, buffer=[])
    return server


def afl_lib_arrives(server: Any, client: int, update: float, staleness: int = 0) -> float:
    """Return the global model of AFL-Lib after an update has arrived."""
    server.cur_client = server.clients[client]
    server.cur_client.dW, server.staleness[client] = torch.tensor([update]), staleness
    server.aggregate()
    server.update_status()
    return float(server.model.weight.item())


AFL_LIB_UNUSED = {"model", "utils.data_utils", "utils.sys_utils"}


def afl_lib_mixed(strategy: str) -> Numbers:
    """Return α_t of AFL-Lib's FedAsync at every staleness."""
    settings = {"poly": POLYNOMIAL, "hinge": HINGE}[strategy]
    with checkout("afl-lib", unused=AFL_LIB_UNUSED) as import_module:
        module, mixed = import_module("alg.fedasync"), []
        for staleness in STALENESS:
            server = afl_lib_server(module, 0.0, decay=ALPHA, strategy=strategy, **{"b": 0.0} | settings)
            server.clients[0].model2tensor = lambda: torch.ones(1)
            mixed.append(afl_lib_arrives(server, 0, 0.0, staleness))
    return mixed


def afl_lib_buffered() -> Numbers:
    """Return the global model of AFL-Lib's FedBuff."""
    with checkout("afl-lib", unused=AFL_LIB_UNUSED) as import_module:
        server = afl_lib_server(import_module("alg.fedbuff"), NOW, etag=1.0, k=len(BUFFER))
        each = [afl_lib_arrives(server, who, arrival.model - arrival.base) for who, arrival in enumerate(BUFFER)]
    return each[-1:]


def afl_lib_calibrated() -> Numbers:
    """Return the global model of AFL-Lib's CA²FL after each buffer."""
    with checkout("afl-lib", unused=AFL_LIB_UNUSED) as import_module:
        server = afl_lib_server(import_module("alg.ca2fl"), NOW, M=3, eta=1.0)
        server.buffer_clients, server.h_cache = [], [torch.zeros(1) for _ in server.clients]
        return [afl_lib_arrives(server, *update) for update in TOGETHER][2::3]


def afl_lib_adaptive() -> Numbers:
    """Return the global model of AFL-Lib's FADAS after each buffer of one update."""
    with checkout("afl-lib", unused=AFL_LIB_UNUSED) as import_module:
        server = afl_lib_server(import_module("alg.fadas"), 0.0, M=1, tau_c=1, **ADAPTIVE)
        server.m, server.buffer_delays = None, []
        return [afl_lib_arrives(server, 0, mean, delay) for mean, delay in zip(MEANS, DELAYS, strict=True)]


def fadas_adaptive() -> Numbers:
    """Return the global model of the authors' FADAS after each mean update.

    The step size is divided by the delay in a script, g_delay_adaptive.py, which cannot be imported.
    """
    args = types.SimpleNamespace(optimizer="fedams", lr=ADAPTIVE["eta"], eps=ADAPTIVE["epsilon"], **ADAPTIVE)
    moments, after, model = [[torch.zeros(1, 1)] for _ in range(4)], [], linear(0.0)
    with checkout("fadas", unused={"compressors", "utils"}) as import_module:
        take_step = import_module("update").update_model_inplace
        for number, (mean, delay) in enumerate(zip(MEANS, DELAYS, strict=True)):
            before, scale = [model.weight.data.clone()], 1 / delay if delay > 1 else 1
            take_step(model, before, [torch.full((1, 1), mean)], args, number, *moments, scale)
            after.append(float(model.weight.item()))
    return after


def asyncfl_client(kind: Any, client: int, target: float) -> Any:
    """Return a client of AsyncFL for which one step of SGD leads from any model to the target."""
    data = DataLoader(TensorDataset(torch.ones(1, 1), torch.full((1, 1), target)), batch_size=1)
    return kind(client, linear(0.0), data, "sgd", {"lr": SERIES_LR}, torch.nn.MSELoss(), device=torch.device("cpu"))


def asyncfl_calibrated(arrivals: Sequence[tuple[int, float]]) -> Numbers:
    """Return the global model of AsyncFL's CA²FL after each buffer of three; clients return what we tell them."""
    with checkout("asyncfl") as import_module:
        module = import_module("algorithms.ca2fl")
        clients = [mock.MagicMock(model=linear(0.0)) for _ in range(NUM_CLIENTS)]
        settings = {"concurrency": 1, "buffer_size_k": 3, "max_server_iterations": len(arrivals) // 3}
        server = module.CA2FLServer(linear(NOW), clients, None, settings, torch.device("cpu"))
        after: Numbers = []
        server.log_results = lambda **_: after.append(float(server.model.weight.item()))
        server.eval_interval, order = 1, [client for client, _ in arrivals]
        server.idle_clients = [*order, 0]
        queues: list[list[float]] = [[] for _ in clients]
        for client, update in arrivals:
            queues[client].append(update)
        for client, queue in zip(clients, queues, strict=True):
            trained = [({"weight": torch.full((1, 1), update)}, 0.0, 1) for update in queue]
            client.train.side_effect = trained
        with mock.patch.object(module, "simulate_delay", return_value=1.0):
            server.run()
    return after[1:]


def asyncfl_series(own_clients: bool) -> Numbers:
    """Return the global model of AsyncFL's Malenia SGD after the first version.

    Its own clients return gradients, as its experiments configure them. Otherwise, clients return trained models and
    keep the model that they started from, as the server assumes.
    """
    with checkout("asyncfl") as import_module:
        module, kind = import_module("algorithms.malenia_sgd"), import_module("clients.base_client").BaseClient
        clients: list[Any] = [asyncfl_client(kind, client, NOW + update) for client, update in enumerate(SERIES)]
        for client in clients:
            client.set_return_type("gradient")
        if not own_clients:
            trained = [({"weight": torch.full((1, 1), NOW + update)}, 0.0, 1) for update in SERIES]
            given = {"model": linear(NOW), "optimizer_params": {"lr": SERIES_LR}}
            clients = [mock.MagicMock(**given, **{"train.return_value": each}) for each in trained]
        settings = {"malenia_S": len(SERIES), "max_server_iterations": 1, "server_lr": SERIES_LR}
        server = module.MaleniaSGDServer(linear(NOW), clients, None, settings, torch.device("cpu"))
        server.log_results = mock.MagicMock()
        with mock.patch.object(module, "simulate_delay", lambda client, **_: SERIES_S[client]):
            server.run()
        return [float(server.model.weight.item())]


def easyfl_calibrated() -> Numbers:
    """Return the global model of the easyFL fork's CA²FL after each buffer, by its loop over arrivals."""
    with checkout("easyfl-fork") as import_module:
        base, server_type = import_module("flgo.utils.fmodule").FModule, import_module("flgo.algorithm.ca2fl").Server

        class Number(base):  # type: ignore[misc, valid-type]
            def __init__(self, value: float = 0.0) -> None:
                super().__init__()
                self.value = torch.nn.Parameter(torch.tensor([value]))

        server = server_type.__new__(server_type)
        vars(server).update(model=Number(NOW), clients=[None] * NUM_CLIENTS, num_clients=NUM_CLIENTS, device="cpu")
        server.init_algo_para = mock.MagicMock()
        server.initialize()
        vars(server).update(eta=1.0, buff_len=3, current_round=0, selected_clients=[])
        order = iter(TOGETHER)
        server.computeDifference = server.fedbalance_pack_model = mock.MagicMock()

        def sample_async() -> int:
            server.next = next(order)
            return int(server.next[0])

        server.sample_async = sample_async
        server.communicate = lambda *_: [{"model": Number(server.next[1])}]
        return [float(server.model.value.item()) for _ in TOGETHER if server.iterate()]


def plato_config(**server: object) -> dict[str, object]:
    """Return stand-ins for Plato's settings and for the classes that its examples derive from."""
    settings = types.SimpleNamespace(server=types.SimpleNamespace(**server))
    classes = types.SimpleNamespace(Server=object, Algorithm=object)
    bases = types.SimpleNamespace(fedavg=classes)
    config = types.SimpleNamespace(Config=lambda: settings)
    return {"plato.config": config, "plato.servers": bases, "plato.algorithms": bases}


def plato_mixed() -> Numbers:
    """Return α_t of Plato's FedAsync for three arrivals in a row, each with a staleness of 1."""
    function = types.SimpleNamespace(type="polynomial", **POLYNOMIAL)
    stubs = plato_config(staleness_weighting_function=function)
    with checkout("plato", "examples/async/fedasync", unused={"plato"}, stubs=stubs) as import_module:
        server_type = import_module("fedasync_server").Server
        server = server_type.__new__(server_type)
        server.mixing_hyperparam, server.adaptive_mixing = ALPHA, True
        server.algorithm = import_module("fedasync_algorithm").Algorithm()
        update = types.SimpleNamespace(staleness=1)
        mixed = [asyncio.run(server.aggregate_weights([update], {"w": 0.0}, [{"w": 1.0}])) for _ in range(3)]
    return [model["w"] for model in mixed]


def plato_buffered() -> Numbers:
    """Return the global model of Plato's FedBuff."""
    with checkout("plato", "examples/async/fedbuff", unused={"plato"}, stubs=plato_config()) as import_module:
        server_type = import_module("fedbuff_server").Server
        server = server_type.__new__(server_type)
        server.trainer = mock.MagicMock(zeros=torch.zeros)
        deltas = [{"w": torch.tensor(each.model - each.base)} for each in BUFFER]
        return [NOW + float(asyncio.run(server.aggregate_deltas(BUFFER, deltas))["w"])]

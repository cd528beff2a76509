"""Oort, REFL, SAFA and FedCS of repositories that are not packages."""

import random
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch

from servers.buffered import plato_config
from servers.inputs import (
    AGES,
    BETA,
    COMPUTE_S,
    DEADLINE_S,
    FRESH,
    LAST_ROUND,
    LATENCY_S,
    NOW,
    NUM_CLIENTS,
    NUM_SELECTED,
    ROUND,
    SAFA_PICKED,
    SAFA_UNDRAFTED,
    STALE,
    UPLOAD_S,
    UTILITY,
    Numbers,
)
from servers.loading import checkout, linear

SHARE = 0.3
"""Oort: share of the clients whose latency is at most the preferred duration."""
OORT = {"exploration_factor": 0.0, "exploration_decay": 1.0, "exploration_min": 0.0, "exploration_alpha": 0.3}
OORT_MORE = {"round_threshold": 100 * SHARE, "round_penalty": 2.0, "sample_window": 5.0, "pacer_step": 20}
OORT_CUTS = {
    "pacer_delta": 5,
    "blacklist_rounds": -1,
    "blacklist_max_len": 0.3,
    "clip_bound": 0.95,
    "cut_off_util": 0.95,
}


class Draw:
    """Stand-in for `numpy.random.choice` that takes the first candidates and keeps the probabilities."""

    def __init__(self) -> None:
        self.chances = [0.0] * len(UTILITY)

    def __call__(self, clients: Any, size: int, *, p: Any, **_: object) -> Any:
        for client, chance in zip(clients, p, strict=True):
            self.chances[int(client)] = float(chance)
        return np.array(list(clients)[:size])


def oort_chances(name: str, folder: str = "") -> Numbers:
    """Return the probability of each client in the draw of Oort's training selector, as published or in FedScale."""
    draw = Draw()
    with checkout(name, folder, unused={"oort.utils"}) as import_module:
        module = import_module("oort.oort")
        with mock.patch.object(module, "np2", mock.MagicMock(random=mock.MagicMock(choice=draw))):
            selector = module.create_training_selector(types.SimpleNamespace(**OORT, **OORT_MORE, **OORT_CUTS))
            for client, latency_s in enumerate(LATENCY_S):
                selector.register_client(client, {"reward": 1.0, "duration": latency_s})
                told = {"reward": UTILITY[client], "duration": latency_s, "time_stamp": LAST_ROUND[client]}
                selector.update_client_util(client, told | {"status": True})
            selector.training_round = ROUND - 1
            selector.select_participant(NUM_SELECTED)
    return draw.chances


def plato_chances(preferred_s: float) -> Numbers:
    """Return the probability of each client in the draw of Plato's Oort; client ids count from 1."""
    draw = Draw()
    stubs = plato_config(desired_duration=preferred_s, exploration_factor=0.0, step_window=20, penalty=2.0)
    with checkout("plato", "examples/client_selection/oort", unused={"plato"}, stubs=stubs) as import_module:
        module = import_module("oort_server")
        server, numbers = module.Server.__new__(module.Server), range(1, len(UTILITY) + 1)
        server.desired_duration, server.penalty, server.cut_off, server.blacklist_num = preferred_s, 2.0, 0.95, 99
        server.exploration_factor, server.step_window, server.pacer_step = 0.0, 20, preferred_s
        server.blacklist, server.util_history, server.explored_clients, server.unexplored_clients = [], [], [], []
        for name in ("client_utilities", "client_durations", "client_last_rounds", "client_selected_times"):
            setattr(server, name, dict.fromkeys(numbers, 0))
        server.prng_state = random.getstate()
        for client in numbers:
            server.current_round = LAST_ROUND[client - 1]
            report = types.SimpleNamespace(statistical_utility=UTILITY[client - 1], training_time=LATENCY_S[client - 1])
            server.weights_aggregated([types.SimpleNamespace(client_id=client, report=report)])
        server.current_round = ROUND
        choice = mock.MagicMock(side_effect=lambda clients, *a, **k: draw([who - 1 for who in clients], *a, **k) + 1)
        with mock.patch.object(module, "np", mock.MagicMock(random=mock.MagicMock(choice=choice))):
            server.choose_clients(list(numbers), NUM_SELECTED)
    return draw.chances


@contextmanager
def refl_server(scale_coff: float) -> Iterator[Any]:
    """Provide REFL's aggregator after the updates of a round have arrived, those in `STALE` from earlier rounds."""
    args = types.SimpleNamespace(
        stale_factor=-4, stale_beta=BETA, scale_coff=scale_coff, send_delta=False, stale_update=-1
    )
    stubs = {"fl_aggregator_libs": types.SimpleNamespace(args=args, logging=mock.MagicMock(), gc=mock.MagicMock())}
    with checkout("refl", "core", unused={"resource_manager", "utils", "wandb"}, stubs=stubs) as import_module:
        server_type = import_module("aggregator").Aggregator
        server = server_type.__new__(server_type)
        fresh, stale = list(range(len(FRESH))), list(range(len(FRESH), len(FRESH) + len(STALE)))
        lists = ("client_training_results", "stats_util_accumulator", "loss_accumulator", "acc_accumulator")
        more = ("acc_5_accumulator", "train_accumulator", "completion_accumulator", "unique_attend_clients")
        for name in (*lists, *more, "model_in_update", "update_clients"):
            setattr(server, name, [])
        vars(server).update(
            args=args,
            scale_coff=scale_coff,
            device="cpu",
            model=linear(0.0),
            epoch=1,
            round_update=True,
            staleWeights={},
            virtual_client_clock={},
            client_samples={},
            label_counter=mock.MagicMock(),
            client_manager=mock.MagicMock(),
            attended_clients=0,
            param_update_count=0,
            count_param_updates=[0],
            tasks_round=len(fresh),
            total_updates=len(fresh) + len(stale),
            client_importance=dict.fromkeys([*fresh, *stale], 1.0),
            round_stale_param={who: [torch.full((1, 1), update)] for who, update in zip(stale, STALE, strict=True)},
            update_stale_rounds=dict(zip(stale, AGES, strict=True)),
            round_stale_updates=len(stale),
        )
        told = dict.fromkeys(("utility", "moving_loss", "train_acc", "train_acc_5", "train_loss", "sample_count"), 1.0)
        for who, update in zip(fresh, FRESH, strict=True):
            weight = torch.full((1, 1), update).numpy()
            server.client_completion_handler(told | {"clientId": who, "update_weight": [weight], "label_counter": {}})
        server.update_importance()
        yield server


def refl_scales(scale_coff: float) -> Numbers:
    """Return the weights that REFL gives to stale updates; fresh ones have the weight 1."""
    with refl_server(scale_coff) as server:
        return [server.client_importance[len(FRESH) + row] for row in range(len(STALE))]


def refl_merged() -> Numbers:
    """Return REFL's global model at the end of the round."""
    with refl_server(scale_coff=1.0) as server:
        server.stale_clients_handler()
        server.normalize_importance()
        return [float(server.model.weight.item())]


def safa_merged() -> Numbers:
    """Return the global model of the authors' SAFA after each of two rounds."""
    with checkout("safa", unused={"FLLocalSupport", "learning_tasks", "matplotlib", "utils"}) as import_module:
        module = import_module("semiAysnc_FedAvg")
        cache, after = module.init_cache(linear(NOW), types.SimpleNamespace(n_clients=NUM_CLIENTS)), []
        for picked, undrafted in zip(SAFA_PICKED, SAFA_UNDRAFTED, strict=True):
            models = [linear((picked | undrafted).get(client, 0.0)) for client in range(NUM_CLIENTS)]
            module.update_cloud_cache(cache, models, list(picked))
            merged = module.safa_aggregate(cache, [1] * NUM_CLIENTS, NUM_CLIENTS)
            module.update_cloud_cache(cache, models, list(undrafted))
            after.append(float(merged.weight.item()))
    return after


def safa_picked() -> Numbers:
    """Return the clients that the authors' SAFA picks in the second round, of three that arrive: 0, 2 and 3."""
    with checkout("safa", unused={"FLLocalSupport", "learning_tasks", "matplotlib", "utils"}) as import_module:
        pick = import_module("semiAysnc_FedAvg").select_clients_CFCFM
        speed = [1 / latency_s for latency_s in LATENCY_S]
        return sorted(map(float, pick([0, 2, 3], list(SAFA_PICKED[0]), speed, [], NUM_CLIENTS // 2)))


def fedcs_selected() -> Numbers:
    """Return the clients that FedCS selects in the repository of SAFA's authors."""
    with checkout("safa", unused={"FLLocalSupport", "learning_tasks", "matplotlib", "utils"}) as import_module:
        select = import_module("FedCS_Nishio").FedCS_selection
        return list(map(float, select(list(range(NUM_CLIENTS)), 1.0, UPLOAD_S, COMPUTE_S, DEADLINE_S)))

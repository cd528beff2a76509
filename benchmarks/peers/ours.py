"""What this project does with the inputs of all cases: its strategies, group memory and server optimizer."""

import dataclasses
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from servers.inputs import (
    ADAPTIVE,
    AGES,
    ALPHA,
    BETA,
    BUFFER,
    CACHED,
    COMPASS_ALPHA,
    COMPUTE_S,
    DEADLINE_S,
    DELAYS,
    FRESH,
    HINGE,
    LAST_ROUND,
    LATENCY_S,
    LATEST_FACTOR,
    MEANS,
    NOW,
    NUM_CLIENTS,
    NUM_SELECTED,
    POLYNOMIAL,
    QUEUE_BETA,
    ROUND,
    SAFA_PICKED,
    SAFA_UNDRAFTED,
    SERIES,
    STALE,
    STALENESS,
    STEP_S,
    STEPS,
    TWICE,
    UPLOAD_S,
    UTILITY,
    Arrival,
    Numbers,
)

from lesson.core.arrays import FloatArray
from lesson.learn.aggregate import GroupVectors
from lesson.learn.optimizers import ServerOptimizer
from lesson.settings.sections import ServerSettings
from lesson.strategies.base import ServerView, Strategy, Updates
from lesson.strategies.ca2fl import CA2FL
from lesson.strategies.fadas import FADAS
from lesson.strategies.fedasync import FedAsync
from lesson.strategies.fedbuff import FedBuff
from lesson.strategies.fedcompass import FedCompass
from lesson.strategies.fedcs import FedCS
from lesson.strategies.fedcs_greedy import FedCSGreedy
from lesson.strategies.fedqueue import FedQueue
from lesson.strategies.malenia import Malenia
from lesson.strategies.oort import Oort
from lesson.strategies.refl import Refl
from lesson.strategies.safa import Safa
from lesson.strategies.tifl import TiFL

VERSION = max(STALENESS)
RNG = np.random.default_rng(0)


def view_of(num_clients: int, **known: Any) -> ServerView:
    """Return a server's view of idle clients, each of them slower than the one before."""
    zeros, ones = np.zeros(num_clients), np.ones(num_clients)
    everybody, int_zeros = np.ones(num_clients, dtype=np.bool_), np.zeros(num_clients, dtype=np.int64)
    latency_s = np.arange(1.0, num_clients + 1)
    view = ServerView(
        round=1,
        version=VERSION,
        now_s=0.0,
        num_connected=num_clients,
        connected=everybody,
        compute_s=latency_s,
        upload_s=zeros,
        shared_upload_s=zeros,
        download_s=zeros,
        latency_s=latency_s,
        first_latency_s=latency_s,
        local_steps=int_zeros + 1,
        batch_samples=int_zeros + 1,
        num_samples=int_zeros + 1,
        client_weight=ones,
        idle=everybody,
        busy=~everybody,
        num_busy=0,
        waiting=int_zeros,
        to_consider=np.arange(num_clients),
        started_round=int_zeros,
        started_s=zeros,
        upload_bits=1.0,
        level_bits={},
        compute_j=zeros,
        transmit_j=zeros,
        signals={},
    )
    return dataclasses.replace(view, **known)


def updates_of(clients: Sequence[int], staleness: Sequence[int], started_round: Sequence[int] | None = None) -> Updates:
    """Return updates of these clients, in order of arrival."""
    count = len(clients)
    zeros, int_zeros = np.zeros(count), np.zeros(count, dtype=np.int64)
    return Updates(
        id=np.arange(count),
        client=np.array(clients),
        base_version=VERSION - np.array(staleness),
        started_round=int_zeros if started_round is None else np.array(started_round),
        started_s=zeros,
        expected_s=zeros,
        arrived_s=zeros,
        index=int_zeros,
        lr_scale=zeros,
        local_steps=int_zeros,
        samples=int_zeros,
        tier=int_zeros,
        level=zeros + np.nan,
        compute_scale=zeros + 1,
        upload_scale=zeros + 1,
        in_turn=int_zeros > 0,
    )


class Server:
    """This project's server for a model that is a single number."""

    def __init__(self, strategy: Strategy, now: float, settings: ServerSettings | None = None) -> None:
        self.strategy, self.model = strategy, torch.tensor([now], dtype=torch.float64)
        self.groups = GroupVectors(self.model)
        self.optimizer = ServerOptimizer.of(settings or ServerSettings(), strategy)
        self.number = 0

    def merge(self, view: ServerView, updates: Updates, models: Sequence[float], bases: Sequence[float]) -> float:
        """Return the global model after these updates, one model and base each, have been aggregated."""
        merge = self.strategy.merge(view, updates)
        values = np.array(models) - (np.array(bases) if merge.of == "updates" else 0.0)
        parts = merge.weights * values[merge.updates]
        if merge.groups is None:
            kept = 1 - float(merge.weights.sum()) if merge.of == "models" else 1.0
            aggregated = kept * self.model + float(parts.sum())
        else:
            means = {name: torch.zeros_like(self.model) for name in merge.groups.names}
            for name, part in zip(merge.groups.names, parts.tolist(), strict=True):
                means[name] += part
            aggregated = self.groups.merge(self.model, means, merge.groups, merge.of)
        self.number += 1
        self.model = self.optimizer.step(self.model, aggregated, merge.step_scale, number=self.number)
        return float(self.model.item())


def merged(strategy: Strategy, now: float, arrivals: Sequence[Arrival]) -> float:
    """Return the global model after arrivals of different clients have been aggregated."""
    updates = updates_of(range(len(arrivals)), [arrival.staleness for arrival in arrivals])
    models, bases = [arrival.model for arrival in arrivals], [arrival.base for arrival in arrivals]
    return Server(strategy, now).merge(view_of(len(arrivals)), updates, models, bases)


def mixed(function: str, settings: Mapping[str, float]) -> Numbers:
    """Return α_t of FedAsync at every staleness: a global model of 0 after aggregating a model of 1."""
    strategy = FedAsync(ALPHA, function, **settings)  # type: ignore[arg-type]  # one of the functions
    return [merged(strategy, 0.0, [Arrival(staleness, 0.0, 1.0)]) for staleness in STALENESS]


def polynomial() -> Numbers:
    """Return α_t of FedAsync with a polynomial at every staleness."""
    return mixed("polynomial", POLYNOMIAL)


def hinge() -> Numbers:
    """Return α_t of FedAsync with a hinge at every staleness."""
    return mixed("hinge", HINGE)


def in_a_row() -> Numbers:
    """Return α_t of FedAsync with a polynomial for three arrivals in a row, each with a staleness of 1."""
    return polynomial()[1:2] * 3


def together() -> Numbers:
    """Return the global model of FedAsync when two models arrive at the same time."""
    return [merged(FedAsync(ALPHA, "constant"), 0.0, [Arrival(0, 0.0, 1.0), Arrival(0, 0.0, 2.0)])]


def scales() -> Numbers:
    """Return s(d) of FedBuff at every staleness: what an update of 1, alone in the buffer, adds."""
    strategy = FedBuff(buffer_size=1, concurrency=1)
    return [merged(strategy, 0.0, [Arrival(staleness, 0.0, 1.0)]) for staleness in STALENESS]


def buffered(scale_staleness: bool = True) -> Numbers:
    """Return the global model of FedBuff."""
    return [merged(FedBuff(len(BUFFER), scale_staleness=scale_staleness), NOW, BUFFER)]


def unscaled() -> Numbers:
    """Return the global model of FedBuff without staleness scaling."""
    return buffered(scale_staleness=False)


def tiers() -> Numbers:
    """Return the probabilities of TiFL for four tiers, the last of which has used up its credits."""
    strategy = TiFL(num_tiers=4, clients_per_round=1, interval=1, credits=1)
    takes_last = SimpleNamespace(choice=lambda tiers, **_: tiers[-1])
    for number in (1, 2):
        view = view_of(4, round=number, signals={"client_accuracy": np.array([0.9, 0.5, 0.7, 0.6])})
        strategy.open_round(view, takes_last)  # type: ignore[arg-type]  # `choice` is the only method used
    return list(strategy._probabilities)


def calibrated(buffers: Sequence[Sequence[tuple[int, float]]]) -> Numbers:
    """Return the global model of CA²FL after each buffer of clients and updates."""
    strategy, after = CA2FL(buffer_size=3, concurrency=1), Numbers()
    strategy.open_round(view_of(NUM_CLIENTS), RNG)
    server = Server(strategy, NOW)
    for buffer in buffers:
        clients, updates = zip(*buffer, strict=True)
        after.append(server.merge(view_of(NUM_CLIENTS), updates_of(clients, [0] * 3), updates, [0.0] * 3))
    return after


def cached() -> Numbers:
    """Return the global model of CA²FL after each of two buffers."""
    return calibrated([list(buffer.items()) for buffer in CACHED])


def cached_twice() -> Numbers:
    """Return the global model of CA²FL after a buffer with two updates of the same client."""
    return calibrated([TWICE])


def adaptive(bias_correction: bool = False) -> Numbers:
    """Return the global model of FADAS after each mean update."""
    known = {"learning_rate": ADAPTIVE["eta"], "beta1": ADAPTIVE["beta1"], "beta2": ADAPTIVE["beta2"]}
    settings = ServerSettings(**known, epsilon=ADAPTIVE["epsilon"])
    strategy = FADAS(buffer_size=1, concurrency=1, delay_threshold=1, bias_correction=bias_correction)
    server = Server(strategy, 0.0, settings)
    steps = zip(MEANS, DELAYS, strict=True)
    return [server.merge(view_of(1), updates_of([0], [delay]), [mean], [0.0]) for mean, delay in steps]


def series() -> Numbers:
    """Return the global model of Malenia SGD after the first version: client 0 has sent its update twice."""
    clients = [0, 1, 0, 2]
    server = Server(Malenia(updates_per_round=len(SERIES)), NOW)
    sent = [SERIES[client] for client in clients]
    return [server.merge(view_of(len(SERIES)), updates_of(clients, [0] * 4), sent, [0.0] * 4)]


def steps() -> Numbers:
    """Return the numbers of local steps that FedCompass assigns."""
    strategy, step_s = FedCompass(**STEPS, latest_factor=LATEST_FACTOR), np.array(STEP_S)
    plan = strategy.open_round(view_of(len(STEP_S), compute_s=step_s, latency_s=step_s), RNG)
    assert plan.local_steps is not None
    return list(map(float, np.asarray(plan.local_steps)))


def group() -> Numbers:
    """Return the global model of FedCompass after a group has arrived."""
    strategy, equal_s = FedCompass(**STEPS, server_lr=COMPASS_ALPHA, a=POLYNOMIAL["a"]), np.ones(len(BUFFER))
    strategy.open_round(view_of(len(BUFFER), compute_s=equal_s, latency_s=equal_s), RNG)
    return [merged(strategy, NOW, BUFFER)]


def window() -> Numbers:
    """Return the global model of FedQueue after a window, with the harmonic staleness function."""
    return [merged(FedQueue(20.0, beta=QUEUE_BETA), NOW, BUFFER)]


def preferred_s() -> float:
    """Return the preferred duration of a round, T, in seconds."""
    return float(np.quantile(LATENCY_S, Oort().preferred_share))


def chances() -> Numbers:
    """Return the probability of each client in the draw of Oort."""
    strategy = Oort(NUM_SELECTED, overcommitment=1.0, exploration=0.0, exploration_min=0.0)
    strategy._known = dict(enumerate(zip(UTILITY, LAST_ROUND, strict=True)))
    found = np.zeros(len(UTILITY))

    def choice(clients: Any, count: int, *, p: FloatArray, **_: object) -> Any:
        found[clients] = p
        return clients[:count]

    view = view_of(len(UTILITY), round=ROUND, latency_s=np.array(LATENCY_S))
    strategy.open_round(view, SimpleNamespace(choice=choice))  # type: ignore[arg-type]  # the only method used
    return found.tolist()


def deviations() -> FloatArray:
    """Return Λ of each stale update of REFL."""
    mean, count = np.mean(FRESH), len(FRESH)
    return np.asarray(((mean - (np.array(STALE) + count * mean) / (count + 1)) / mean) ** 2)


def refl_round() -> tuple[Refl, ServerView, Updates]:
    """Return the strategy REFL, its view and the updates at the end of a round."""
    ages, count = [0] * len(FRESH) + AGES, len(FRESH) + len(STALE)
    updates = updates_of(range(count), [0] * count, [ROUND - age for age in ages])
    signals = {"update_deviation": lambda *_: deviations()}
    return Refl(beta=BETA), view_of(count, round=ROUND, signals=signals), updates


def stale_scales() -> Numbers:
    """Return the weights of stale updates in REFL, relative to those of fresh ones."""
    strategy, view, updates = refl_round()
    weights = strategy.merge(view, updates).weights
    return list(map(float, weights[len(FRESH) :] / weights[0]))


def refl_merged() -> Numbers:
    """Return the global model of REFL at the end of the round."""
    strategy, view, updates = refl_round()
    return [Server(strategy, 0.0).merge(view, updates, [*FRESH, *STALE], [0.0] * len(updates))]


def safa_rounds(strategy: Safa) -> Numbers:
    """Return the global model of SAFA after each of two rounds; an undrafted model of round 1 waits in round 2."""
    server, first = Server(strategy, NOW), SAFA_PICKED[0] | SAFA_UNDRAFTED[0]
    view = view_of(NUM_CLIENTS, started_round=np.ones(NUM_CLIENTS, dtype=np.int64))
    after = [server.merge(view, updates_of(list(first), [0] * 3, [1] * 3), list(first.values()), [0.0] * 3)]
    second = SAFA_UNDRAFTED[0] | SAFA_PICKED[1]
    view = view_of(NUM_CLIENTS, round=2, started_round=np.array([2, 2, 2, 1]))
    started = [1 if client in (2, 3) else 2 for client in second]
    after.append(server.merge(view, updates_of(list(second), [0] * 3, started), list(second.values()), [0.0] * 3))
    return after


def safa_merged() -> Numbers:
    """Return the global model of SAFA after each of two rounds."""
    return safa_rounds(Safa(fraction=0.5))


def safa_picked() -> Numbers:
    """Return the clients that SAFA picks after 0 and 1, of three that arrive: 0, 2 and 3."""
    strategy = Safa(fraction=0.5)
    for clients in ([0, 1], [0, 2, 3]):
        strategy.merge(view_of(NUM_CLIENTS), updates_of(clients, [0] * len(clients)))
    return list(map(float, strategy._picked))


def selected(strategy: FedCS | FedCSGreedy) -> Numbers:
    """Return the clients that FedCS selects."""
    compute_s, upload_s = np.array(COMPUTE_S), np.full(NUM_CLIENTS, UPLOAD_S)
    times = {"upload_s": upload_s, "shared_upload_s": upload_s, "latency_s": compute_s + upload_s}
    latency = {"first_latency_s": compute_s + upload_s}
    plan = strategy.open_round(view_of(NUM_CLIENTS, compute_s=compute_s, **times, **latency), RNG)
    return sorted(map(float, plan.starts))


def in_parallel() -> Numbers:
    """Return the clients that `fedcs` selects."""
    return selected(FedCS(DEADLINE_S))


def one_by_one() -> Numbers:
    """Return the clients that `fedcs-greedy` selects."""
    return selected(FedCSGreedy(DEADLINE_S))

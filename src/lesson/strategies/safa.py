"""SAFA: W. Wu et al., "SAFA: A Semi-Asynchronous Protocol for Fast Federated Learning With Low Overhead", 2021.

Clients that arrived in round t − 1 are up to date and start from the newest model. Clients that have trained for
τ = `lag_tolerance` rounds, so that their version is older than t − τ, are deprecated: their training is canceled, and
they start again. The others are tolerable and keep training. The round closes when C·n clients (C = `fraction`) that
were not picked in the last round have arrived, at most `round_limit_s` after it opened. These are picked first, then
other arrivals in order, up to C·n; the rest are undrafted.

The server caches a model for each client, which is the initial model at first. (1) Entries of picked clients are set to
their models, those of deprecated clients to the newest global model. (2) The new model is Σ n_k/n · entry k, over all
connected clients, with n_k by `[training] weighting`. (3) Entries of undrafted clients are set to their models, which
thus bypass this round. Here an undrafted update waits at the server and is written to its entry in step 1 of the next
round, or dropped if its client is picked then; the models are the same.

Departures: the server predicts from its estimates which arrival closes a round, which is exact if the estimates are.
The paper's random crashes are left out.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from lesson.core.arrays import NO_CLIENTS, IntArray
from lesson.core.errors import InputError
from lesson.core.validation import Count, Fraction, PositiveOrInf
from lesson.strategies.base import AllOf, CheckedOptions, GroupMemory, Merge, RoundPlan, ServerView, Updates, shares
from lesson.strategies.shared import check_connected, share_of


@dataclass
class Safa(CheckedOptions):
    """The server caches every client's model; a round waits for a fraction of the clients."""

    fraction: Fraction = 0.5
    """Fraction C of the connected clients that are picked in a round."""
    lag_tolerance: Count = 5
    """Number τ of rounds after which the local training of a client is canceled."""
    round_limit_s: PositiveOrInf = math.inf
    """Maximum length of a round; inf for no limit."""
    _picked: IntArray = field(default_factory=lambda: NO_CLIENTS, init=False, repr=False)
    """Clients picked in the last round."""
    _deprecated: IntArray = field(default_factory=lambda: NO_CLIENTS, init=False, repr=False)
    """Clients deprecated in this round."""

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        check_connected(view)
        if view.round == 1 and (fastest_s := view.latency_s.min()) > self.lag_tolerance * self.round_limit_s:
            raise InputError(
                f"safa would never receive an update: the fastest client takes {fastest_s:.4g} s, more than "
                f"lag_tolerance = {self.lag_tolerance} rounds of round_limit_s = {self.round_limit_s:g}; "
                "increase one of them"
            )
        connected = np.flatnonzero(view.connected)
        lags = view.busy[connected] & (view.round - view.started_round[connected] >= self.lag_tolerance)
        self._deprecated = connected[lags]
        starting = view.idle[connected] | lags
        arrives_s = np.where(starting, view.now_s, view.started_s[connected]) + view.latency_s[connected]
        first = np.argsort(arrives_s, kind="stable")
        first = first[~np.isin(connected[first], self._picked)]
        quota = share_of(len(connected), self.fraction)
        awaited = connected if len(first) < quota else connected[first[:quota]]
        return RoundPlan(
            connected[starting], AllOf(awaited, by_s=view.now_s + self.round_limit_s), drops=self._deprecated
        )

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        # Undrafted in the last round: the client has started again since.
        bypassed = arrived.started_round < view.started_round[arrived.client]
        order = np.lexsort((np.isin(arrived.client, self._picked), bypassed))[: np.count_nonzero(~bypassed)]
        picked = order[: share_of(view.num_connected, self.fraction)]
        self._picked = np.sort(arrived.client[picked])
        replaced = bypassed & np.isin(arrived.client, self._picked)
        enters = bypassed & ~replaced
        enters[picked] = True
        connected = np.flatnonzero(view.connected)
        groups = GroupMemory(
            _names(arrived.client[enters]),
            dict(zip(_names(connected), shares(view.client_weight[connected]).tolist(), strict=True)),
            resets=_names(self._deprecated),
        )
        return Merge(arrived.id[enters], np.ones(len(groups.names)), groups=groups, drops=arrived.id[replaced])


def _names(clients: IntArray) -> list[str]:
    return [f"client {client}" for client in clients.tolist()]

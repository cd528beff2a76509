"""The data of the deadline explorer: the clients of a fleet, and the results of about 200 deadlines."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lesson.fleet.fleet import Columns, Fleet, make_fleet
from lesson.fleet.tiers import UNREACHABLE, assign_tiers
from lesson.planning.plan import evaluate_deadline, evaluate_fedavg, evaluate_fedcs, propose_deadline_s, round_up
from lesson.report.clients import values_of
from lesson.settings.settings import Settings

EXPLORER = ("explorer_words.js", "explorer_charts.js", "explorer_deploy.js", "explorer.js")
"""Scripts of the explorer in the order in which they are loaded."""
_SHOWN = ("name", "x_km", "y_km", "compute_s", "upload_s", "latency_s")
NUM_DEADLINES = 200
"""Number of geometrically spaced deadlines; some of them become equal when they are rounded to two digits."""


@dataclass(frozen=True)
class Advice:
    """The deadline that a page proposes, and the reason.

    Attributes:
        proposed_s: The proposed deadline in seconds.
        min_on_time: Required share of updates on time; None if the deadline was chosen by latency alone.
        on_time: Share of updates that arrive on time at this deadline; None if it was not simulated.
        fedavg_round_s: Simulated mean round length of FedAvg; None if latencies do not vary.
    """

    proposed_s: float
    min_on_time: float | None = None
    on_time: float | None = None
    fedavg_round_s: float | None = None


@dataclass(frozen=True)
class Origin:
    """Where the clients of a page come from.

    Attributes:
        source: Text that names the file or the seed.
        flags: Flags of `lesson run` for the same clients; None if there are none.
        recording: File of the recording to which the fleet was fitted; None for other fleets.
    """

    source: str
    flags: str | None = None
    recording: str | None = None


def explorer_data(
    clients: Columns,
    num_clients: int,
    deadline_s: float,
    origin: Origin,
    *,
    ensure_first_tier: bool = False,
    advice: Advice | None = None,
) -> dict[str, Any]:
    """Return the data for `Explorer.mount`, which only draws it.

    Args:
        clients: The clients as in `columns_of`.
        num_clients: Size of the whole fleet, of which `clients` may be a sample.
        deadline_s: The deadline that is shown first.
        origin: Where the clients come from.
        ensure_first_tier: Whether the fastest client is promoted if tier 1 is empty.
        advice: The proposed deadline; by default, that of these clients.
    """
    fleet = _fleet_of(clients, ensure_first_tier)
    advice = advice or Advice(propose_deadline_s(fleet))
    order = np.argsort(fleet.latency_s, kind="stable").tolist()
    return {
        "clients": {
            name: column and [column[client] for client in order] for name, column in clients.items() if name in _SHOWN
        },
        "num_clients": num_clients,
        "reach_s": fleet.reach_s,
        "ensure_first_tier": ensure_first_tier,
        "deadline_s": deadline_s,
        "deadlines": [_row(fleet, one_s) for one_s in _deadlines_s(fleet, {deadline_s, advice.proposed_s})],
        "fedavg": vars(evaluate_fedavg(fleet, advice.fedavg_round_s)),
        **asdict(origin),
        "advice": asdict(advice),
    }


def _fleet_of(clients: Columns, ensure_first_tier: bool) -> Fleet:
    """Return a fleet with the stored columns that plans need."""

    names = clients["name"] or []
    energies = {name: values_of(clients, name) for name in ("compute_j", "transmit_j")}
    times = values_of(clients, "compute_s"), values_of(clients, "upload_s"), values_of(clients, "latency_s", math.inf)
    settings = Settings(ensure_first_tier=ensure_first_tier)
    return make_fleet(settings, names, np.ones(len(names), dtype=np.int64), *times, **energies)


def _deadlines_s(fleet: Fleet, more: set[float]) -> list[float]:
    """Return deadlines of two digits from a quarter of the lowest latency to the highest, `more` and infinity, sorted.

    The last finite deadline covers all outliers.
    """
    last_s = round_up(fleet.reach_s)
    first_s = max(float(fleet.latency_s.min()) / 4, last_s / 1e5)
    spaced = {min(round_up(one_s), last_s) for one_s in np.geomspace(first_s, last_s, NUM_DEADLINES).tolist()}
    return sorted(spaced | more | {round_up(fleet.slowest_s), math.inf})


def _row(fleet: Fleet, deadline_s: float) -> dict[str, Any]:
    """Return the results of a deadline; `tiers` has the number of clients in each tier, from fast to slow."""
    fedcs = evaluate_fedcs(fleet, deadline_s)
    tiers = assign_tiers(fleet.at_deadline(deadline_s).latency_s, deadline_s)
    pairs = np.stack(np.unique(tiers[tiers != UNREACHABLE], return_counts=True), axis=1)
    return {
        **vars(evaluate_deadline(fleet, deadline_s)),
        "fedcs": fedcs and vars(fedcs),
        "tiers": pairs.tolist(),
    }

"""Band, power and CPU frequency of the clients that start: who decides on them, and what they change on the clock."""

import numpy as np

from lesson.clock.ledger import Ledger
from lesson.core.arrays import FloatArray, IntArray
from lesson.core.errors import InputError, RunStoppedError
from lesson.core.plugins import call_custom
from lesson.fleet.allocation import TOLERANCE, Allocate, Allocation, Resources, checked_allocation
from lesson.fleet.fleet import Fleet
from lesson.strategies.base import Every, RoundPlan, Updates


def allocated(
    plan: RoundPlan, strategy: str, allocate: Allocate | None, fleet: Fleet, ledger: Ledger, round: int, now_s: float
) -> Resources | None:
    """Return the resources of a plan's starts: those in the plan, or else those that `allocate` returns.

    If both are None, clients have their usual resources, as far as these are free. The result is None if no client
    starts. `strategy` is its name for errors.
    """
    given, source = plan.allocation, f"round {round}: {strategy}: RoundPlan.allocation"
    if not len(plan.starts):
        return None
    if plan.uploads == "in-turn":
        raise InputError("[radio] allocation cannot be combined with a strategy whose clients upload in turn")
    free_hz = _free_hz(plan, fleet, ledger)
    if given is None and allocate is not None:
        deadline_s = plan.closes.interval_s if isinstance(plan.closes, Every) else plan.closes.by_s - now_s
        name = getattr(allocate, "__qualname__", type(allocate).__name__)
        source = f"round {round}: allocation {allocate.__module__}:{name}"
        given = call_custom(source, allocate, fleet, plan.starts, free_hz, deadline_s)
    elif given is None:
        given, source = Allocation(), f"round {round}: usual resources"
    return checked_allocation(given, fleet, plan.starts, free_hz, source)


def _free_hz(plan: RoundPlan, fleet: Fleet, ledger: Ledger) -> float:
    """Return the total bandwidth without that of clients in flight; raise RunStoppedError if they hold all of it."""
    assert fleet.link is not None, "only clients with positions have resources"
    holding = ledger.clients_in_flight()
    holding = holding[~np.isin(holding, plan.drops)]
    held = len(holding) if ledger.resources is None else float(ledger.resources.band[holding].sum())
    if len(fleet) - held <= TOLERANCE * len(fleet):
        raise RunStoppedError(
            f"no band is free for client {fleet.names[plan.starts[0]]}: clients that are still training hold all of "
            "it; use an allocation that leaves some, or a strategy whose clients start together"
        )
    return (len(fleet) - held) * fleet.link.band_hz


def slowdown(fleet: Fleet, clients: IntArray, resources: Resources) -> FloatArray:
    """Return the upload time of each client divided by the usual one, without fading, given all clients' resources."""
    assert fleet.link is not None, "only clients with positions have resources"
    assert fleet.population is not None, "only drawn clients have positions"
    band_hz = resources.band[clients] * fleet.link.band_hz
    power_w = resources.power[clients] * fleet.population.power_w[clients]
    with np.errstate(divide="ignore"):
        return fleet.rate_bps[clients] / fleet.rate_with(clients, band_hz, power_w)


def usual_rate_bps(fleet: Fleet, clients: IntArray, rate_bps: FloatArray, resources: Resources) -> FloatArray:
    """Return the rate on each client's own band at the SNR with which it had a rate, given all clients' resources."""
    assert fleet.link is not None, "only clients with positions have resources"
    band, power = resources.band[clients], resources.power[clients]
    return fleet.link.rate_bps(fleet.snr_at(clients, rate_bps, band, power))


def size_scale(fleet: Fleet, updates: Updates) -> FloatArray:
    """Return the size of each upload divided by that of the usual one."""
    return fleet.bits_at(updates.level) / fleet.upload_bits


def power_factors(resources: Resources, clients: IntArray) -> FloatArray:
    """Return compute and transmit power of clients, divided by the usual ones, shape (2, len(clients)).

    The compute power is κ·f³: κ·f²·cycles in the time cycles / f.
    """
    return np.array([resources.cpu[clients] ** 3, resources.power[clients]])


def update_j(fleet: Fleet, clients: IntArray, resources: Resources | None) -> FloatArray:
    """Return the energy of a usual update of each client in joules, given all clients' resources if they are unusual.

    The compute energy is κ·f²·cycles, the transmit energy power times time.
    """
    compute_j, transmit_j = fleet.compute_j[clients], fleet.transmit_j[clients]
    if resources is None:
        return compute_j + transmit_j
    slower = slowdown(fleet, clients, resources)
    return compute_j * resources.cpu[clients] ** 2 + transmit_j * resources.power[clients] * slower

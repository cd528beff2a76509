"""Allocation: which band, transmit power and CPU frequency the clients get that start in a round.

`equal-finish` is the min-max optimum for local trainings that start together: all clients finish at the same time T,
the earliest one possible. The smallest band with which client i finishes by T solves b·log2(1 + c/b) = s / (T − t),
where t is its download and compute time and c is its signal-to-noise ratio times its bandwidth. With more band, the
rate grows, but never beyond c / ln 2, so that T has a lower bound for clients with little power.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from lesson.core.arrays import FloatArray, IntArray, read_only
from lesson.core.errors import InputError, unknown
from lesson.core.plugins import load_named
from lesson.fleet.fleet import Fleet

TOLERANCE = 1e-9
"""Relative tolerance of limits."""
PRECISION = 1e-14
"""Relative precision of the finish time of `equal-finish`."""


@dataclass(frozen=True, eq=False)
class Allocation:
    """Resources of clients for one local training and its upload.

    Attributes:
        bandwidth_hz: Bandwidth of each client, shape (num_clients,). None: the usual one. The same holds for the next
            two.
        power_w: Transmit power, at most the client's usual one.
        cpu_hz: CPU frequency, at most the client's usual one.
    """

    bandwidth_hz: FloatArray | None = None
    power_w: FloatArray | None = None
    cpu_hz: FloatArray | None = None


class Resources(NamedTuple):
    """Resources of clients, each divided by the client's usual one; arrays of the same length."""

    band: FloatArray
    power: FloatArray
    cpu: FloatArray


class Allocate(Protocol):
    """A function that allocates resources. It is called when a round opens, for the clients that start in it."""

    def __call__(self, fleet: Fleet, clients: IntArray, free_hz: float, deadline_s: float, /) -> Allocation:
        """Return the resources of these clients.

        Args:
            fleet: All clients, with the server's current estimates of their times; `fleet.snr_of` and
                `fleet.rate_with` return estimated signal-to-noise ratios and data rates.
            clients: Clients that start.
            free_hz: Total bandwidth, `num_clients` × `bandwidth_hz`, without that of clients that are still training.
            deadline_s: Time until the round closes at the latest; inf if there is no limit.
        """
        ...


def equal(fleet: Fleet, clients: IntArray, free_hz: float, deadline_s: float) -> Allocation:  # noqa: ARG001
    """Split the free band equally."""
    return Allocation(np.minimum(free_hz / len(clients), widest_hz(fleet, clients)))


def equal_finish(fleet: Fleet, clients: IntArray, free_hz: float, deadline_s: float) -> Allocation:  # noqa: ARG001
    """Split the free band so that all clients finish their usual local training and upload at the same time.

    With full power and CPU frequency, no other split lets the last client finish earlier. This is for strategies that
    wait for all clients, such as FedAvg: fast clients finish later than with an equal split.
    """
    link, widest = fleet.link, widest_hz(fleet, clients)
    assert link is not None, "only clients with positions have resources"
    begins_s = fleet.download_s[clients] + fleet.compute_s[clients]
    bits = fleet.upload_s[clients] * fleet.rate_bps[clients]
    power_hz = fleet.snr_of(clients) * link.band_hz / link.gap

    def bands_hz(finish_s: float) -> FloatArray:
        rate_bps = bits / np.maximum(finish_s - begins_s, np.finfo(float).tiny)
        band_hz = np.maximum(_shannon_hz(rate_bps, power_hz), rate_bps / link.max_bps_per_hz)
        return np.where(band_hz <= widest, band_hz, np.inf)

    split = np.minimum(free_hz / len(clients), widest)
    low_s = float(begins_s.max())
    high_s = float((begins_s + bits / fleet.rate_with(clients, split)).max()) * (1 + PRECISION)
    while high_s - low_s > PRECISION * high_s:
        middle_s = (low_s + high_s) / 2
        if bands_hz(middle_s).sum() <= free_hz:
            high_s = middle_s
        else:
            low_s = middle_s
    return Allocation(bands_hz(high_s))


def widest_hz(fleet: Fleet, clients: IntArray) -> FloatArray:
    """Return the largest band on which each client is received at full power; inf without a minimum SNR."""
    link = fleet.link
    assert link is not None, "only clients with positions have resources"
    if not link.min_snr:
        return np.full(len(clients), np.inf)
    return (1 - TOLERANCE) * link.band_hz * fleet.snr_of(clients) / link.min_snr


def _shannon_hz(rate_bps: FloatArray, power_hz: FloatArray) -> FloatArray:
    """Return the band b at which b·log2(1 + c/b) is this rate, with c = `power_hz`; inf if no band suffices.

    With x = c/b and a = rate·ln 2 / c, the equation is ln(1 + x) = a·x. Lambert's function solves it, but loses digits
    for small x, which follow from the Taylor series and a step of Newton's method.
    """
    from scipy.special import lambertw

    share = rate_bps * np.log(2) / power_hz
    feasible = share < 1
    share = np.where(feasible, share, 0.5)
    near = 1 - share
    snr = -lambertw(-share * np.exp(-share), -1).real / share - 1
    snr = np.where(near < 1e-3, (2 + 8 / 3 * near) * near, snr)
    snr = snr - (np.log1p(snr) - share * snr) / (1 / (1 + snr) - share)
    return np.where(feasible & (snr > 0), power_hz / np.where(snr > 0, snr, 1.0), np.inf)


ALLOCATIONS: dict[str, Allocate] = {"equal": equal, "equal-finish": equal_finish}


def find_allocation(name: str) -> Allocate | None:
    """Return the allocation of this name, or given as module:function; None if `name` is empty."""
    if not name:
        return None
    if ":" not in name:
        if name not in ALLOCATIONS:
            raise unknown("allocation", name, ALLOCATIONS)
        return ALLOCATIONS[name]
    allocate: Allocate = load_named("allocation", name, "module:function")
    if not callable(allocate):
        raise InputError(f"allocation '{name}' must be a function")
    return allocate


def usual_resources(fleet: Fleet) -> Allocation:
    """Return the usual resources of all clients, as read-only arrays."""
    assert fleet.link is not None, "only clients with positions have resources"
    assert fleet.population is not None, "only drawn clients have positions"
    band_hz = np.full(len(fleet), fleet.link.band_hz)
    return Allocation(*map(read_only, (band_hz, fleet.population.power_w, fleet.population.cpu_hz)))


def checked_allocation(given: object, fleet: Fleet, clients: IntArray, free_hz: float, source: str) -> Resources:
    """Return the resources of clients; raise InputError, starting with `source`, if the allocation is not valid."""
    if not isinstance(given, Allocation):
        raise InputError(f"{source} must be an Allocation, got {given!r:.80}")
    usual = {name: values[clients] for name, values in vars(usual_resources(fleet)).items()}
    most = usual | {"bandwidth_hz": np.full(len(clients), free_hz)}
    checked = list[FloatArray]()
    for name, usually in usual.items():
        if (values := getattr(given, name)) is None:
            values = usually
        try:
            array = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError):
            array = np.empty((0, 0))
        if array.shape != clients.shape:
            raise InputError(f"{source}: {name} must be numbers, one per client ({len(clients)}), got {values!r:.80}")
        if len(wrong := np.flatnonzero(~((array > 0) & (array <= most[name] * (1 + TOLERANCE))))):
            who, limit, got = fleet.names[clients[wrong[0]]], most[name][wrong[0]], array[wrong[0]]
            raise InputError(f"{source}: {name} must be > 0 and at most {limit:g}, got {got:g} for client {who}")
        checked.append(array / usually)
    if (total_hz := float((checked[0] * usual["bandwidth_hz"]).sum())) > free_hz * (1 + TOLERANCE):
        raise InputError(f"{source}: bandwidth_hz must sum to at most {free_hz:g}, the free band, got {total_hz:g}")
    return Resources(*checked)

"""The channels of a fleet: their mean gains over time, SNR traces, and data rates of phones."""

from pathlib import Path

import numpy as np

from lesson.core.arrays import FloatArray, IntArray
from lesson.fleet.phones import PhoneRates
from lesson.fleet.population import Population
from lesson.fleet.traces import read_positions, read_snr
from lesson.radio.channel import Channel, PositionsAt, Site, make_channel
from lesson.radio.mobility import Itinerary, Positions, RandomWaypoint
from lesson.radio.snr_traces import SnrTraces
from lesson.settings.settings import Settings


def positions_of(settings: Settings, population: Population, seed: int) -> PositionsAt:
    """Return a function that returns where clients are; `seed` is that of their movement."""
    if settings.fleet.positions:
        path, names = Path(settings.fleet.positions), range(len(population))
        at = Itinerary(read_positions(path, names, settings.fleet.area_km)).at
    elif settings.moves:
        radio, area_km = settings.radio, settings.fleet.area_km
        at = RandomWaypoint(seed, population.x_km, population.y_km, area_km, radio.speed_mps, radio.pause_s).at
    else:

        def at(clients: IntArray, times_s: FloatArray) -> Positions:
            x_km, y_km = (
                np.broadcast_to(one[clients, None], times_s.shape) for one in (population.x_km, population.y_km)
            )
            return x_km, y_km

    return lambda clients, times_s: at(clients[:, 0], np.broadcast_to(times_s, (len(clients), times_s.shape[1])))


def channel_of(settings: Settings, population: Population, seed: int) -> Channel:
    """Return the channel of the clients; `seed` is that of their movement."""
    positions = positions_of(settings, population, seed)
    return make_channel(settings.radio, Site(len(population), population.seed, settings.radio.carrier_ghz, positions))


def snr_traces_of(settings: Settings, num_clients: int, seed: int) -> SnrTraces | None:
    """Return the SNR traces that the clients follow; None if the settings name no file."""
    radio = settings.radio
    if not radio.snr_trace:
        return None
    start_seed = seed if radio.snr_start == "drawn" else None
    return SnrTraces(*read_snr(Path(radio.snr_trace)), num_clients, settings.block_s, start_seed)


def phone_rates_of(settings: Settings, num_clients: int, seed: int) -> PhoneRates | None:
    """Return the data rates of the clients' phones; None if rates follow Eq. (5)."""
    return PhoneRates(num_clients, seed) if settings.radio.throughput == "phones" else None

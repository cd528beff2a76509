"""The measured channels of a fleet, which replace path loss: SNR traces, and data rates of phones."""

from pathlib import Path

from lesson.fleet.phones import PhoneRates
from lesson.fleet.traces import read_snr
from lesson.radio.snr_traces import SnrTraces
from lesson.settings.settings import Settings


def snr_traces_of(settings: Settings, num_clients: int, seed: int) -> SnrTraces | None:
    """Return the SNR traces that the clients follow; None if the settings name no file."""
    radio = settings.radio
    if not radio.snr_trace:
        return None
    start_seed = seed if radio.snr_start == "drawn" else None
    return SnrTraces(*read_snr(Path(radio.snr_trace)), num_clients, radio.coherence_s, start_seed)


def phone_rates_of(settings: Settings, num_clients: int, seed: int) -> PhoneRates | None:
    """Return the data rates of the clients' phones; None if rates follow Eq. (5)."""
    return PhoneRates(num_clients, seed) if settings.radio.throughput == "phones" else None

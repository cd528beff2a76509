import numpy as np
import pytest

from lesson import Settings, draw_fleet
from lesson.clock.worlds import airtime
from lesson.clock.worlds.airtime import Airtime
from lesson.radio import fading_gain

SETTINGS = Settings(fading="rician", speed_mps=(1.0, 15.0), shadowing_db=8.0, coherence_s=3.0, spectrum="equal")


def made() -> Airtime:
    fleet = draw_fleet(SETTINGS, num_clients=9, seed=2)
    assert fleet.population is not None
    return Airtime(SETTINGS, fleet, fleet.population, seed=2)


@pytest.mark.parametrize("kept", [1, 1 << 22])
def test_rates_on_a_shared_band_do_not_depend_on_what_was_asked_before(
    kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(airtime, "_MAX_KEPT_ELEMENTS", kept)
    together, everybody = made(), np.arange(9)
    asked = [(block, everybody[first::3]) for first in (2, 0, 1) for block in (40, 0, 15, 16, 41, 3)]
    rates = [together.shared_rate_bps(clients, block, 4) for block, clients in asked]
    for (block, clients), rate_bps in zip(asked, rates, strict=True):
        alone = [made().shared_rate_bps(clients[[place]], block, 4)[0] for place in range(len(clients))]
        assert rate_bps.tolist() == alone
        assert together.shared_rate_bps(clients[::-1], block, 4).tolist() == alone[::-1]


def test_a_rate_on_a_shared_band_is_that_of_the_equation() -> None:
    # Standing and without shadowing: nine bands of 30 kHz split in four, each with the noise of 2.25 bands of -100 dBm.
    settings = Settings(fading="rayleigh", spectrum="equal")
    fleet = draw_fleet(settings, num_clients=9, seed=2)
    assert fleet.population is not None
    band = Airtime(settings, fleet, fleet.population, seed=2)
    clients = np.array([7, 3])
    loss_db = 128.1 + 37.6 * np.log10(fleet.population.distance_km[clients])
    gain = fading_gain("rayleigh", 0.0, airtime.key(2, "fading"), clients, np.array(17))
    snr = 0.1 * 10 ** (-loss_db / 10) * gain / (2.25 * 1e-13)
    assert band.shared_rate_bps(clients, 17, 4) == pytest.approx(2.25 * 30e3 * np.log2(1 + snr), rel=1e-12)

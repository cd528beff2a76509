import pytest

from helpers.fleets import make_fleet
from lesson import Fleet


@pytest.fixture
def fleet() -> Fleet:
    """Clients 0 to 3 take 5, 16, 30 and 38 s, half of it for computing."""
    return make_fleet([5.0, 16.0, 30.0, 38.0])

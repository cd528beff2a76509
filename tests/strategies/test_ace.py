"""ACE on clients 0 to 3, which take 5, 16, 30 and 38 s, by hand."""

from pathlib import Path

import pytest

from helpers.fleets import make_fleet, traced
from helpers.one_number import OneNumber
from helpers.strategies import follow
from lesson import ACE, Fleet, Settings


def test_models_and_caches(fleet: Fleet) -> None:
    """The first round waits for client 3, at 38 s: h = 4, 8, 12, 16 and w = 40/4 = 10. Every arrival adds a mean:

    43 s: h₀ = 8, 44/4 = 11. 48 s: h₀ = 0, 36/4 = 9. 53 s: h₀ = 20, 56/4 = 14. 54 s: h₁ = 0, 48/4 = 12.
    58 s: h₀ = 4, 32/4 = 8. 63 s: h₀ = 8, 36/4 = 9. 68 s: h₂ = 20 and h₀ = 12, 48/4 = 12.
    """
    server = OneNumber({0: [4, 8, 0, 20, 4, 8, 12], 1: [8, 0], 2: [12, 20], 3: [16]})
    run = follow(ACE(server_lr=1.0), fleet, 8, server=server)
    assert run.trace == [
        (38.0, [0, 1, 2, 3], [0, 1, 2, 3], [0, 0, 0, 0]),
        (43.0, [0, 1, 2, 3], [0], [0]),
        (48.0, [0], [0], [0]),
        (53.0, [0], [0], [0]),
        (54.0, [0], [1], [3]),
        (58.0, [1], [0], [1]),
        (63.0, [0], [0], [0]),
        (68.0, [0], [2, 0], [6, 0]),
    ]
    assert [float(model) for model in server.models] == pytest.approx([0, 10, 21, 30, 44, 56, 64, 73, 85])


def test_a_client_that_comes_later_joins_the_cache(tmp_path: Path) -> None:
    """Client 1 comes at 12 s. η = 0.5. Until it arrives at 20 s, N = 1; then h = 4 and 6: w + 0.5·(4 + 6) / 2."""
    presence = traced(tmp_path / "presence.csv", "client,from_s,to_s 1,12,inf")
    server = OneNumber({0: [4] * 9, 1: [6] * 9})
    run = follow(ACE(server_lr=0.5), make_fleet([5.0, 7.0]), 5, server=server, settings=Settings(presence=presence))
    assert [(end_s, merged) for end_s, _, merged in run.rounds] == [
        (5.0, [0]),
        (10.0, [0]),
        (15.0, [0]),
        (20.0, [0]),
        (22.0, [1]),
    ]
    assert [float(model) for model in server.models] == pytest.approx([0, 2, 4, 6, 8, 10.5])

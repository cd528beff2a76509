"""Numbers that stay as they are when nothing new is switched on: fleets as drawn, and every strategy's rounds.

What is compared are digests in golden.json; `python tests/test_golden.py` writes them anew, when a change is meant.
Logarithms and powers may differ between processors in their last bit. So fleets are compared to nine digits, few
enough that a last bit hardly ever turns one, and, to the bit, with their equations written out here. The clock runs on
fleets of such rounded times: from there on it only adds, multiplies and divides, which is the same everywhere, and its
records are compared to the bit.
"""

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lesson import Scenario, draw_fleet, simulate
from lesson.arrays import FloatArray
from lesson.strategies import STRATEGIES, fleet_for, make_strategy

GOLDEN = Path(__file__).with_name("golden.json")
DRAWN = ("compute_s", "upload_s", "shared_upload_s", "latency_s", "compute_j", "transmit_j", "shared_transmit_j")
RECORDED = (
    *("round", "start_s", "end_s", "version", "started", "merged", "staleness", "merged_started_s", "merged_arrived_s"),
    *("uploads", "bytes_up", "bytes_down", "compute_j", "transmit_j", "note", "refused"),
)
"""Fields of a record, by name: what is added later does not change a digest."""
SEEDS = (0, 1)
RUNS = [f"{name} {setting} {seed}" for name in STRATEGIES for setting in ("released 20", "printed 5") for seed in SEEDS]
RUNS += [f"{name} released 8 {seed}" for name in STRATEGIES if name.startswith("lesson") for seed in SEEDS]
"""Strategy, preset, deadline in s and seed. Within 8 s nobody is done, so the fastest client is put into tier 1."""
FLEETS = [f"fleet {preset} {seed}" for preset in ("released", "printed") for seed in SEEDS]


def rounded(values: FloatArray) -> FloatArray:
    """The values to nine significant digits."""
    return np.array([float(f"{value:.9g}") for value in values])


def digest(rows: list[list[Any]]) -> str:
    """A short name of rows of numbers, arrays and texts, other for every other bit: Python writes floats exactly."""
    plain = [[value.tolist() if hasattr(value, "tolist") else value for value in row] for row in rows]
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()[:16]


def run_digest(case: str) -> str:
    name, preset, deadline_s, seed = case.split()
    scenario = Scenario(preset=preset, deadline_s=float(deadline_s))
    drawn = draw_fleet(scenario, seed=int(seed))
    drawn = replace(drawn, **{column: rounded(getattr(drawn, column)) for column in DRAWN})
    strategy = make_strategy(name, scenario.deadline_s)
    records = simulate(strategy, fleet_for(name, drawn, scenario), rounds=60, seed=int(seed))
    return digest([[getattr(record, field) for field in RECORDED] for record in records])


def fleet_digest(case: str) -> str:
    _, preset, seed = case.split()
    fleet = draw_fleet(Scenario(preset=preset), 200, seed=int(seed))
    return digest([[rounded(getattr(fleet, column)) for column in DRAWN]])


@pytest.mark.parametrize("case", RUNS)
def test_rounds_stay_as_they_are(case: str) -> None:
    assert run_digest(case) == json.loads(GOLDEN.read_text())[case]


@pytest.mark.parametrize("case", FLEETS)
def test_fleets_stay_as_they_are(case: str) -> None:
    assert fleet_digest(case) == json.loads(GOLDEN.read_text())[case]


@pytest.mark.parametrize("preset", ["released", "printed"])
@pytest.mark.parametrize("seed", SEEDS)
def test_fleets_are_their_equations_to_the_bit(preset: str, seed: int) -> None:
    """Equations (3) to (6), in the order in which they are worked out."""
    scenario = Scenario(preset=preset)
    fleet = draw_fleet(scenario, 200, seed=seed)
    people = fleet.population
    assert people is not None
    assert isinstance(scenario.latency_samples, int)
    path_loss_db = scenario.path_loss_1km_db + scenario.path_loss_slope_db * np.log10(
        np.hypot(people.x_km, people.y_km)
    )
    received_w = scenario.power_w * np.power(10.0, -path_loss_db / 10)
    noise_w = float(np.power(10.0, (scenario.noise_dbm - 30) / 10))

    def upload_s(bands: int) -> FloatArray:
        rate_bps = bands * scenario.bandwidth_hz / float(np.log(2)) * np.log1p(received_w / (bands * noise_w))
        return scenario.model_bits / rate_bps

    cycles = math.log2(1 / 0.05) * people.cycles_per_sample * scenario.latency_samples
    expected = {
        "compute_s": cycles / people.cpu_hz,
        "upload_s": upload_s(1),
        "shared_upload_s": upload_s(200),
        "latency_s": cycles / people.cpu_hz + upload_s(1),
        "compute_j": 1e-28 * people.cpu_hz**2 * cycles,
        "transmit_j": scenario.power_w * upload_s(1),
        "shared_transmit_j": scenario.power_w * upload_s(200),
    }
    for column in DRAWN:
        np.testing.assert_array_equal(getattr(fleet, column), expected[column], err_msg=column)


def test_a_digest_tells_the_last_bit() -> None:
    row = [3, 0.1, np.array([1.0, 2.0]), None, "note"]
    assert digest([row]) == digest([list(row)])
    for place, other in [(0, 4), (1, 0.1 + 2**-56), (2, np.array([1.0, np.nextafter(2.0, 3.0)])), (3, 0.0), (4, "")]:
        assert digest([[*row[:place], other, *row[place + 1 :]]]) != digest([row])


def test_nothing_golden_is_left_over() -> None:
    assert sorted(json.loads(GOLDEN.read_text())) == sorted(RUNS + FLEETS)


if __name__ == "__main__":
    digests = {case: run_digest(case) for case in RUNS} | {case: fleet_digest(case) for case in FLEETS}
    GOLDEN.write_text(json.dumps(digests, indent=1) + "\n")

"""Worked values of 3GPP TR 38.901, tables 7.4.1-1 and 7.4.2-1, users at 1.5 m.

UMa at 3 GHz, 20·log10(3) = 9.542425. Breakpoint 4 · 24 · 0.5 · 3e9 / 3e8 = 480 m. Drop 25 − 1.5 = 23.5 m, squared
552.25.
 100 m: d3D = √(10000 + 552.25) = 102.7241, log10 = 2.0116724.
   LoS  28 + 22 · 2.0116724 + 9.542425 = 81.799218
   NLoS 13.54 + 39.08 · 2.0116724 + 9.542425 = 101.698583
 1000 m: d3D² = 1000552.25, log10 d3D = 3.0001199; breakpoint term 9 · log10(480² + 552.25) = 9 · log10(230952.25)
   = 9 · 5.3635222 = 48.271700.
   LoS  28 + 40 · 3.0001199 + 9.542425 − 48.271700 = 109.275521
   NLoS 13.54 + 39.08 · 3.0001199 + 9.542425 = 140.327111
UMi at 3 GHz. Breakpoint 4 · 9 · 0.5 · 10 = 180 m. Drop 8.5 m, squared 72.25. 21.3 · log10(3) = 10.162683.
 100 m: d3D² = 10072.25, log10 d3D = 2.0015633.
   LoS  32.4 + 21 · 2.0015633 + 9.542425 = 83.975254
   NLoS 22.4 + 35.3 · 2.0015633 + 10.162683 = 103.217867
 500 m: d3D² = 250072.25, log10 d3D = 2.6990327; 9.5 · log10(180² + 72.25) = 9.5 · log10(32472.25)
   = 9.5 · 4.5115124 = 42.859368.
   LoS  32.4 + 40 · 2.6990327 + 9.542425 − 42.859368 = 107.044365
   NLoS 22.4 + 35.3 · 2.6990327 + 10.162683 = 127.838537
"""

import numpy as np
import pytest

from lesson.radio.tr38901 import (
    breakpoint_km,
    line_of_sight_probability,
    path_loss_db,
    rician_k_db,
    rician_k_km,
    shadowing_db,
    shadowing_km,
)

MODELS = ["uma", "umi"]

# Values of the formulas in NVIDIA Sionna 1.2.1 (https://github.com/NVlabs/sionna, src/sionna/phy/channel/tr38901,
# uma_scenario.py and umi_scenario.py), computed apart from this package. Columns: distance in km, carrier in GHz, path
# loss in dB of UMa with and without line of sight, the same of UMi, probability of line of sight of UMa and UMi.
SIONNA = [
    (0.01, 0.7, 55.8605, 65.4356, 52.7816, 58.5688, 1, 1),
    (0.012, 3.5, 70.1518, 79.9690, 67.7984, 75.2006, 1, 1),
    (0.017, 28, 89.1173, 99.6362, 88.2001, 98.3698, 1, 1),
    (0.018, 2, 66.3895, 77.0596, 65.6993, 74.6661, 1, 1),
    (0.025, 6, 77.3426, 89.1078, 77.8186, 89.1604, 0.908286, 0.859819),
    (0.035, 0.8, 61.8090, 75.1019, 63.1485, 75.2807, 0.792966, 0.698003),
    (0.05, 3.5, 77.2122, 92.5108, 79.0896, 94.1807, 0.649402, 0.519585),
    (0.075, 2.6, 77.9982, 95.9116, 80.1340, 97.5264, 0.471098, 0.334631),
    (0.1, 28, 101.2000, 121.0993, 103.3760, 123.8796, 0.347671, 0.230985),
    (0.15, 0.9, 75.3806, 97.8723, 85.5343, 98.2660, 0.201367, 0.133643),
    (0.2, 3.5, 89.5695, 114.4620, 91.6112, 115.2288, 0.128048, 0.093518),
    (0.25, 0.7, 83.8365, 104.2281, 94.2168, 103.7567, 0.089545, 0.072895),
    (0.3, 2, 88.5465, 116.4184, 97.9816, 116.2605, 0.068036, 0.060226),
    (0.4, 60, 120.8248, 150.8208, 122.6083, 152.1308, 0.046669, 0.045014),
    (0.5, 3.5, 98.2692, 129.9158, 107.1080, 129.2645, 0.036345, 0.036001),
    (0.8, 1.8, 104.9362, 132.1055, 114.9638, 130.3172, 0.022503, 0.0225),
    (1.0, 28, 122.9458, 159.7278, 124.3435, 159.1250, 0.018, 0.018),
    (1.5, 3.5, 116.4475, 148.5451, 126.1907, 146.1049, 0.012, 0.012),
    (3.0, 0.5, 126.4807, 143.4058, 137.0751, 138.7305, 0.006, 0.006),
    (5.0, 3.5, 137.3607, 168.9773, 147.1056, 164.5623, 0.0036, 0.0036),
]
# Sionna's speed of light is exact, the standard's and ours is 3e8 m/s. Beyond the breakpoint that makes
# 19 · log10(3e8 / 299792458) = 0.00571 dB in UMi and 18/19 of it in UMa.
LIGHT_DB = 0.0058


def loss(model, distance_km: float, seen: bool, carrier_ghz: float = 3.0) -> float:
    return float(path_loss_db(model, np.array([distance_km]), carrier_ghz, np.array([seen]))[0])


@pytest.mark.parametrize(
    ("model", "distance_km", "seen_db", "hidden_db"),
    [
        ("uma", 0.1, 81.799218, 101.698583),
        ("uma", 1.0, 109.275521, 140.327111),
        ("umi", 0.1, 83.975254, 103.217867),
        ("umi", 0.5, 107.044365, 127.838537),
    ],
)
def test_worked_values(model, distance_km: float, seen_db: float, hidden_db: float) -> None:
    assert loss(model, distance_km, True) == pytest.approx(seen_db, abs=2e-5)
    assert loss(model, distance_km, False) == pytest.approx(hidden_db, abs=2e-5)


def test_worked_values_at_ten_meters() -> None:
    # UMa at 10 m: d3D = √(100 + 552.25) = 25.53919, log10 = 1.4072071. LoS 28 + 30.958556 + 9.542425 = 68.500981;
    # NLoS 13.54 + 54.993653 + 9.542425 = 78.076078. UMi at 10 m: d3D² = 172.25, log10 d3D = 1.1180795. At 100 GHz
    # NLoS 22.4 + 39.468206 + 42.6 = 104.468206.
    assert loss("uma", 0.01, True) == pytest.approx(68.500981, abs=2e-5)
    assert loss("uma", 0.01, False) == pytest.approx(78.076078, abs=2e-5)
    assert loss("umi", 0.01, False, 100.0) == pytest.approx(104.468206, abs=2e-5)


def test_loss_is_never_lower_without_line_of_sight() -> None:
    # UMi at 0.5 GHz, 10 km, where the steeper LoS formula has overtaken the other. Breakpoint 30 m; log10 d3D = 4.
    # LoS 32.4 + 160 − 6.020600 − 9.5·log10(972.25) = 186.379400 − 28.383891 = 157.995509, more than the NLoS formula's
    # 22.4 + 141.2 − 6.411939 = 157.188061.
    assert loss("umi", 10.0, True, 0.5) == pytest.approx(157.995509, abs=2e-5)
    assert loss("umi", 10.0, False, 0.5) == loss("umi", 10.0, True, 0.5)


@pytest.mark.parametrize("model", MODELS)
def test_loss_grows_with_distance_and_without_line_of_sight(model) -> None:
    distances_km = np.geomspace(0.01, 5, 2000)
    seen, hidden = (path_loss_db(model, distances_km, 3.5, np.full(2000, sight)) for sight in (True, False))
    assert np.all(np.diff(seen) > 0)
    assert np.all(np.diff(hidden) > 0)
    assert np.all(hidden >= seen)


@pytest.mark.parametrize(
    ("model", "carrier_ghz", "at_km"), [("uma", 3.0, 0.48), ("umi", 3.0, 0.18), ("umi", 28.0, 1.68)]
)
def test_loss_does_not_jump_at_the_breakpoint(model, carrier_ghz: float, at_km: float) -> None:
    """There 40·log10(d3D) − 18·log10(d3D) is 22·log10(d3D), and 40 − 19 = 21 for UMi: both formulas are the same."""
    assert breakpoint_km(model, carrier_ghz) == pytest.approx(at_km)
    before, after = (loss(model, at_km * factor, True, carrier_ghz) for factor in (1 - 1e-9, 1 + 1e-9))
    assert after == pytest.approx(before, abs=1e-6)


@pytest.mark.parametrize("model", MODELS)
def test_distances_below_ten_meters_count_as_ten(model) -> None:
    assert loss(model, 0.0, True) == loss(model, 0.01, True)
    assert loss(model, 0.004, False) == loss(model, 0.01, False)
    assert line_of_sight_probability(model, np.array([0.0])) == 1


@pytest.mark.parametrize(
    ("model", "expected"),
    # 100 m: 0.18 + e^(−100/63)·0.82 = 0.18 + 0.204475·0.82; UMi 0.18 + e^(−100/36)·0.82 = 0.18 + 0.062177·0.82.
    # 500 m: 0.036 + e^(−500/63)·0.964 = 0.036 + 0.000357·0.964; UMi 0.036 + e^(−500/36)·0.964 = 0.036 + 9.3e-7·0.964.
    [("uma", [1, 1, 0.347669, 0.036345]), ("umi", [1, 1, 0.230985, 0.036001])],
)
def test_probability_of_line_of_sight(model, expected: list[float]) -> None:
    distances_km = np.array([0.01, 0.018, 0.1, 0.5])
    assert line_of_sight_probability(model, distances_km) == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("row", SIONNA)
def test_same_values_as_sionna(row: tuple[float, ...]) -> None:
    distance_km, carrier_ghz, *expected = row
    losses_db = [loss(model, distance_km, seen, carrier_ghz) for model in MODELS for seen in (True, False)]
    probabilities = [float(line_of_sight_probability(model, np.array(distance_km))) for model in MODELS]
    assert losses_db == pytest.approx(expected[:4], abs=LIGHT_DB)
    assert probabilities == pytest.approx(expected[4:], abs=1e-6)


@pytest.mark.parametrize(
    ("model", "deviations_db", "distances_m", "k_db", "k_m"),
    # sigmaSF, corrDistSF, muK and sigmaK, corrDistK in Sionna's UMa_LoS.json, UMa_NLoS.json and the same of UMi.
    [("uma", [4, 6], (37, 50), (9, 3.5), 12), ("umi", [4, 7.82], (10, 13), (9, 5), 15)],
)
def test_shadowing_and_rician_k_are_those_of_sionna(model, deviations_db, distances_m, k_db, k_m) -> None:
    assert shadowing_db(model, np.array([True, False])).tolist() == deviations_db
    assert tuple(1000 * km for km in shadowing_km(model)) == pytest.approx(distances_m)
    assert rician_k_db(model) == k_db
    assert 1000 * rician_k_km(model) == pytest.approx(k_m)

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

from lesson.radio.tr38901 import breakpoint_km, line_of_sight_probability, path_loss_db

MODELS = ["uma", "umi"]


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

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.fleets import make_fleet
from lesson import InputError, Settings, draw_fleet
from lesson.planning.plan import propose_deadline_s
from lesson.report.page.plan_page import MAX_CLIENTS, Advice, Origin, fleet_data, write_plan_page


def data_of(path: Path) -> dict[str, Any]:
    """The numbers inside a page."""
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', path.read_text(), re.DOTALL)
    assert found is not None
    return dict(json.loads(found[1]))


def test_a_page_holds_the_fleet_bit_for_bit(tmp_path: Path) -> None:
    fleet = draw_fleet(Settings(), 7, seed=2)
    write_plan_page(tmp_path / "plan.html", fleet, 12.5, Origin("seven"), ["a <b> & c"])
    data = data_of(tmp_path / "plan.html")
    clients, people = data["fleet"]["clients"], fleet.population
    assert people is not None
    for name in ("compute_s", "upload_s", "latency_s", "compute_j", "transmit_j"):
        assert clients[name] == getattr(fleet, name).tolist(), name
    assert (clients["x_km"], clients["y_km"]) == (people.x_km.tolist(), people.y_km.tolist())
    assert clients["name"] == list(range(7))
    assert (data["fleet"]["deadline_s"], data["fleet"]["ensure_first_tier"]) == (12.5, False)
    assert (data["fleet"]["source"], data["fleet"]["num_clients"], data["notes"]) == ("seven", 7, ["a <b> & c"])


def test_a_page_holds_the_proposal_for_the_whole_fleet_unless_another_is_given() -> None:
    fleet = draw_fleet(Settings(), 2 * MAX_CLIENTS, seed=1)
    advice = {
        "proposed_s": propose_deadline_s(fleet),
        "min_on_time": None,
        "on_time": None,
        "fedavg_round_s": None,
    }
    assert fleet_data(fleet, 20.0, Origin("many"))["advice"] == advice
    given = fleet_data(fleet, 28.0, Origin("many"), Advice(28.0, 0.9, 0.925, 70.5))["advice"]
    assert given == {"proposed_s": 28.0, "min_on_time": 0.9, "on_time": 0.925, "fedavg_round_s": 70.5}


def test_what_is_not_known_is_null(tmp_path: Path) -> None:
    fleet = make_fleet([5.0, math.inf])
    fleet.compute_j[:] = fleet.transmit_j[:] = math.nan
    write_plan_page(tmp_path / "plan.html", fleet, math.inf, Origin("two"))
    data = data_of(tmp_path / "plan.html")["fleet"]
    assert data["deadline_s"] is None
    assert data["clients"]["latency_s"] == [5.0, None]
    assert [data["clients"][name] for name in ("x_km", "y_km", "compute_j", "transmit_j")] == [None] * 4


def test_of_a_large_fleet_a_part_spread_over_its_latencies() -> None:
    fleet = draw_fleet(Settings(), 4 * MAX_CLIENTS, seed=1)
    data = fleet_data(fleet, 20.0, Origin("many"))
    names, latencies = data["clients"]["name"], np.array(data["clients"]["latency_s"])
    assert len(set(names)) == MAX_CLIENTS
    assert names == sorted(names)
    assert (latencies == fleet.latency_s[names]).all()
    assert data["num_clients"] == 4 * MAX_CLIENTS
    assert (latencies.min(), latencies.max()) == (fleet.latency_s.min(), fleet.latency_s.max())
    for share in (0.1, 0.5, 0.9):
        assert np.quantile(latencies, share) == pytest.approx(np.quantile(fleet.latency_s, share), rel=1e-3)


def test_pages_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "taken.html").mkdir()
    for name, message in (("plan.pdf", "html must end in .html, .htm, got"), ("taken.html", "is not writable")):
        with pytest.raises(InputError, match=message):
            write_plan_page(tmp_path / name, make_fleet([5.0]), 10.0, Origin("one"))

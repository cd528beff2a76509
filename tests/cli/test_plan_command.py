"""`lesson plan` on drawn, measured and recorded clients."""

import json
import math
import socket
from pathlib import Path
from typing import Any

import pytest

from helpers.flights import write_flight
from helpers.pages import data_of
from lesson.cli import main

LATENCIES = "client,latency_s\na,40\nb,12.3\nc,10\nd,30\n"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fleet.csv").write_text(LATENCIES)


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]) -> Any:
    """Return the JSON of `lesson plan` with these flags."""

    def plan(*argv: str) -> dict[str, Any]:
        assert main(["plan", "--json", *argv]) == 0
        return dict(json.loads(capsys.readouterr().out))

    return plan


def test_auto_proposes_a_deadline(plan: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The fastest of four takes 10 s, and a tenth more: 11 s, in which it is alone in tier 1."""
    found = plan("--latencies", "fleet.csv", "--deadline", "auto")
    assert found["deadline_s"] == 11.0
    assert {client["client"]: client["tier"] for client in found["clients"]} == {"a": 4, "b": 2, "c": 1, "d": 3}
    assert main(["plan", "--latencies", "fleet.csv", "--deadline", "auto"]) == 0
    shown = capsys.readouterr()
    assert "11 s" in shown.out
    assert shown.err == ""


def test_compressors_are_listed(plan: Any) -> None:
    """LeNet-5 has 61,706 values in 10 arrays; qsgd sends 8 bits of each, and 32 for each of 121 buckets of 512."""
    found = {row["compression"]: row["bits"] for row in plan("--clients", "5", "--compressors")["uploads"]}
    whole = 100e3 / (32 * 61_706)
    assert list(found) == ["none", "float16 16", "qsgd 8", "randk 0.01", "sign 1", "topk 0.01", "uniform 8"]
    assert found["qsgd 8"] == pytest.approx(whole * (8 * 61_706 + 32 * 121))
    assert found["uniform 8"] == pytest.approx(whole * (8 * 61_706 + 10 * 64))
    qsgd = ("--clients", "5", "--set", "compression=qsgd", "--set", "model_bits=actual")
    ours = plan(*qsgd, "--set", "level=4")["uploads"]
    assert [(row["compression"], row["bits"]) for row in ours] == [("qsgd 4", 4 * 61_706 + 32 * 121)]
    sizes = [row["bits"] for row in plan(*qsgd, "--set", "upload.bucket=100", "--compressors")["uploads"]]
    assert sizes[:2] == [8 * 61_706 + 32 * 618, 32 * 61_706]
    assert len(sizes) == 7


def test_compressors_need_upload_times(plan: Any, tmp_path: Path) -> None:
    (tmp_path / "fleet.csv").write_text("client,latency_s\na,40\nb,10\n")
    found = plan("--latencies", str(tmp_path / "fleet.csv"), "--compressors")
    assert found["uploads"] == []
    assert "upload times are unknown" in found["notes"][-1]


def test_json_of_a_drawn_fleet(plan: Any) -> None:
    found = plan("--clients", "20", "--seed", "3", "--rounds", "5", "--deadline", "15")
    assert len(found["clients"]) == 20
    client = found["clients"][0]
    times, link = ["client", "compute_s", "upload_s", "latency_s"], ["distance_km", "gain_db", "snr_db", "error_rate"]
    assert list(client) == [*times, "compute_j", "transmit_j", *link, "rate_bps", "upload_bits", "tier"]
    # Eq. (5): 128.1 + 37.6·log10(d) dB; 0.1 W and −100 dBm of noise, on 30 kHz
    assert client["gain_db"] == pytest.approx(-(128.1 + 37.6 * math.log10(client["distance_km"])))
    assert client["snr_db"] == pytest.approx(20 + 100 + client["gain_db"])
    assert client["rate_bps"] == pytest.approx(30e3 * math.log2(1 + 10 ** (client["snr_db"] / 10)))
    assert client["upload_bits"] == 100e3
    assert {row["on_time"] for row in [*found["tiers"], *found["deadlines"]]} == {1.0}
    assert list(found["round_s"]) == ["lesson", "fedavg", "fedcs"]
    assert [record["end_s"] for record in found["rounds"]] == [15.0, 30.0, 45.0, 60.0, 75.0]
    assert found == plan("--clients", "20", "--seed", "3", "--rounds", "5", "--deadline", "15")
    assert found != plan("--clients", "20", "--seed", "4", "--rounds", "5", "--deadline", "15")


def test_tiers_of_measured_latencies_by_hand(plan: Any) -> None:
    Path("fleet.csv").write_text("client,latency_s\nphone,0.3\ntablet,0.9\npi,2.1\nsensor,0.31\ngone,inf\n")
    found = plan("--latencies", "fleet.csv", "--deadline", "0.3", "--rounds", "3")
    tiers = {client["client"]: client["tier"] for client in found["clients"]}
    assert tiers == {"phone": 1, "tablet": 3, "pi": 7, "sensor": 2, "gone": None}
    assert [record["clients"] for record in found["rounds"]] == [["phone"], ["phone", "sensor"], ["phone", "tablet"]]
    assert found["unreachable"] == ["gone"]


def test_client_is_promoted_only_on_request(plan: Any) -> None:
    fleet = ["--latencies", "fleet.csv", "--deadline", "8"]
    assert plan(*fleet)["promoted"] is None
    assert plan(*fleet)["round_s"]["fedcs"] is None
    promoted = plan(*fleet, "--set", "ensure_first_tier=true")["promoted"]
    assert promoted == {"client": "c", "latency_s": 10.0}


def test_settings_come_from_preset_file_and_changes(plan: Any) -> None:
    Path("mine.toml").write_text('preset = "printed"\n[strategy]\ndeadline_s = 7\n[fleet]\nnum_clients = 9\n')
    found = plan("--scenario", "mine.toml")
    assert (len(found["clients"]), found["round_s"]["lesson"]) == (9, 7.0)
    printed = plan("--scenario", "printed")["clients"][:9]
    assert [one["latency_s"] for one in found["clients"]] == [one["latency_s"] for one in printed]
    changed = plan("--scenario", "mine.toml", "--set", "strategy.deadline_s=8", "--clients", "4")
    assert (len(changed["clients"]), changed["round_s"]["fedcs"]) == (4, 8.0)


def test_phones_need_no_network(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """LeNet-5 has 61,706 values of 32 bits; the slowest and the fastest phone send 430.97 and 6635.41 kbit/s."""

    def fail(*_: object) -> None:
        raise AssertionError("a connection was attempted")

    monkeypatch.setattr(socket.socket, "connect", fail)
    monkeypatch.setattr(socket, "getaddrinfo", fail)
    found = plan("--scenario", "phones", "--clients", "200")
    upload_s = [client["upload_s"] for client in found["clients"]]
    assert (min(upload_s), max(upload_s)) == pytest.approx((1974.592 / 6635.41, 1974.592 / 430.97), rel=1e-4)
    assert all(0 < tier["on_time"] < 1 for tier in found["tiers"])


def test_figure_and_page(capsys: pytest.CaptureFixture[str]) -> None:
    """The name of the file is not read as a formula."""
    Path("$x^{$日本.csv").write_text(LATENCIES)
    flags = ["--latencies", "$x^{$日本.csv", "--figure", "plan.pdf", "--html", "plan.html"]
    assert main(["plan", *flags]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "plan.pdf" in shown.out
    assert "plan.html" in shown.out
    assert Path("plan.pdf").read_bytes().startswith(b"%PDF")
    assert Path("plan.html").read_text().startswith("<!doctype html>")


def test_on_time_raises_the_proposed_deadline(plan: Any) -> None:
    auto = ["--clients", "20", "--set", "fading=rayleigh", "--set", "coherence_s=5.0", "--deadline", "auto"]
    proposed, raised = plan(*auto), plan(*auto, "--on-time", "0.97", "--html", "plan.html")
    shares = [{row["deadline_s"]: row["on_time"] for row in one["deadlines"]} for one in (proposed, raised)]
    assert shares[0][proposed["deadline_s"]] < 0.97 <= shares[1][raised["deadline_s"]]
    assert raised["deadline_s"] > proposed["deadline_s"]
    advice = data_of(Path("plan.html"))["fleet"]["advice"]
    assert (advice["proposed_s"], advice["fedavg_round_s"]) == (raised["deadline_s"], raised["round_s"]["fedavg"])


@pytest.mark.parametrize(
    ("setting", "rows"),
    [
        ("trace", "client,round,compute_s,upload_s\na,1,30,10\nb,1,2,10.3\nc,1,4,6\nc,2,4,9\nd,1,20,10\n"),
        ("presence", "client,from_s,to_s\na,0,1000\n"),
        ("estimate_error", ""),
    ],
)
def test_measured_clients_whose_times_vary(plan: Any, setting: str, rows: str) -> None:
    Path("rows.csv").write_text(rows)
    change = f"{setting}={'rows.csv' if rows else 0.3}"
    found = plan("--latencies", "fleet.csv", "--deadline", "20", "--set", change)
    assert {who for record in found["rounds"] for who in record["clients"]} == {"a", "b", "c", "d"}
    assert 0.5 < found["tiers"][0]["on_time"] <= 1
    assert setting in found["notes"][-1]


def test_settings_without_effect_are_noted(plan: Any) -> None:
    notes = plan("--set", "local_epochs=1", "--set", "strategy.close_early=false")["notes"]
    for name in ("local_epochs", "close_early"):
        assert sum(name in note for note in notes) == 1


def test_recorded_clients_are_planned_with_median_latencies(plan: Any) -> None:
    """a: 4, 4, 5, 4, 6 without its cold first reply; b: 10, 12, 11, 14, 11; c: 30, 28, 32, 31, 30 and a failure."""
    nan = float("nan")
    rounds = [[9.0, 10, 30, -20], [4, 12, 28, nan], [4, 11, -60, nan], [5, 14, 32, -20], [4, 11, 31, nan]]
    write_flight(Path("flight.jsonl"), [*rounds, [6, nan, 30, nan]])
    found = plan("--flight", "flight.jsonl", "--deadline", "12", "--html", "plan.html")
    clients = [(one["client"], one["latency_s"], one["tier"]) for one in found["clients"]]
    assert clients == [("a", 4.0, 1), ("b", 11.0, 1), ("c", 30.0, 3), ("d", None, None)]
    assert found["clients"][1]["compute_s"] == pytest.approx(0.75 * 11)
    assert found["unreachable"] == ["d"]
    assert Path("plan.html").exists()


def test_extreme_numbers_print_no_warning(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tiny.csv").write_text("client,latency_s\na,1e-320\nb,1e300\n")
    for flags in (["--set", "energy_kappa=1e300"], ["--latencies", "tiny.csv"]):
        assert main(["plan", *flags]) == 0, flags
        assert capsys.readouterr().err == "", flags


def test_plan_tells_which_uploads_fail(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--set", "packet_error=outage"]) == 0
    assert "unreachable and in no tier: their SNR is below -6.7 dB" in " ".join(capsys.readouterr().out.split())
    assert main(["plan", "--set", "packet_error=exponential"]) == 0
    assert "uploads are corrupted with probability" in " ".join(capsys.readouterr().out.split())

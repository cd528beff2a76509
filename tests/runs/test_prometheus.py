"""What Prometheus reads: the file of a run and of a resumed one, and the endpoint of a run in progress."""

import socket
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from helpers.resuming import StoppedError, stop_after
from helpers.runs import PARTS, settings
from lesson import InputError
from lesson.runs.execute import execute
from lesson.runs.prometheus import Prometheus
from lesson.runs.summary import read_metrics

parser = pytest.importorskip("prometheus_client.parser")


def samples(text: str) -> dict[str, float]:
    """Return the values by name without its prefix, followed by the label other than `run`."""
    found = dict[str, float]()
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels.pop("run") == "run"
            found[" ".join([sample.name.removeprefix("lesson_"), *sample.labels.values()])] = sample.value
    return found


def test_file_of_a_resumed_run_has_the_totals_of_all_rounds(tmp_path: Path) -> None:
    run, often = tmp_path / "run", settings(checkpoint_every_s=1e-9)
    with pytest.raises(StoppedError):
        execute(often, run, trackers=[Prometheus()], progress=stop_after(7), **PARTS)
    before = samples((run / "metrics.prom").read_text())
    assert (before["round"], before["finished"], "metric accuracy" in before) == (7.0, 0.0, True)
    summary = execute(often, run, resume=True, trackers=[Prometheus()], **PARTS)
    after, lines = samples((run / "metrics.prom").read_text()), read_metrics(run / "metrics.jsonl")
    last_staleness = next(line["staleness"] for line in reversed(lines) if line["staleness"] is not None)
    assert after.pop("last_round_timestamp_seconds") > before.pop("last_round_timestamp_seconds")
    assert after == {
        "round": 30.0,
        "time_seconds": summary["time_s"],
        "deadline_seconds": 20.0,
        "aggregated_updates_total": sum(len(line["merged"]) for line in lines),
        "uploads_total": summary["uploads"],
        "uploaded_bytes_total": summary["bytes_up"],
        "downloaded_bytes_total": summary["bytes_down"],
        "excluded_clients_total": 0.0,
        "staleness": last_staleness,
        "metric accuracy": summary["accuracy"],
        "metric loss": pytest.approx(summary["loss"]),
        "finished": 1.0,
    }


def line(round: int, **fields: Any) -> dict[str, Any]:
    """The line of a round on real clients."""
    counts = {"uploads": 3, "bytes_up": 8, "bytes_down": 9, "staleness": 0}
    return {"round": round, "time_s": 9.5 * round, **counts, **fields}


def test_endpoint_shows_the_clients_of_a_run_in_progress(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    file = tmp_path / "textfiles" / "fleet.prom"
    file.parent.mkdir()
    tracker = Prometheus(file, port)
    tracker.begin(settings(), tmp_path / "run", [line(1, rejections={"no reply": [4, 5]}, tiers={"1": 1, "3": 1})])
    tracker.line(line(2, rejections={"no reply": [4], "not finite": [2]}, excluded=[2], connected=5, tiers={"1": 2}))
    tracker.line(line(3, latency_s={"0.5": 7.25}, client_metrics={"2": {"f1": 0.5}, "3": {"f1": 0.75}}))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
        text = reply.read().decode()
    shown = samples(text)
    assert file.read_text() == text
    assert Counter(shown) >= Counter(
        {
            "rejected_updates_total no reply": 3.0,
            "rejected_updates_total not finite": 1.0,
            "excluded_clients_total": 1.0,
            "connected_clients": 5.0,
            "client_latency_seconds 0.5": 7.25,
            "metric clients_f1": 0.75,
        }
    )
    tracker.end(None)
    again = Prometheus(port=port)
    again.begin(settings(), tmp_path, [])  # the port is free again
    assert not any(name.startswith("clients_in_tier") for name in shown), "the last line has none"
    again.end(None)
    assert samples(file.read_text())["finished"] == 0.0


@pytest.mark.parametrize("options", [{"path": "metrics.txt"}, {"port": 0}, {"port": "9108"}])
def test_invalid_options(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"^{next(iter(options))} must"):
        Prometheus(**options)

"""Exports the metrics of a run to Prometheus: as a file for node_exporter, and over HTTP if a port is given."""

import importlib.util
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from lesson.core.errors import InputError
from lesson.core.validation import check_value
from lesson.learn.metric import RESERVED
from lesson.runs.trackers import Line, numbers
from lesson.settings.settings import Settings

if TYPE_CHECKING:
    from prometheus_client.core import Metric

FILE, LOSS = "metrics.prom", "loss"
METRICS = {
    "round": ("", "Last round that has ended."),
    "time_seconds": ("", "End of the last round in seconds since the run began: simulated, or real with real clients."),
    "last_round_timestamp_seconds": ("", "When the last round was reported, in seconds since 1970."),
    "deadline_seconds": ("", "Deadline of the strategy."),
    "aggregated_updates_total": ("", "Aggregated updates."),
    "uploads_total": ("", "Updates that have arrived."),
    "uploaded_bytes_total": ("", "Bytes that clients have uploaded."),
    "downloaded_bytes_total": ("", "Bytes that clients have downloaded."),
    "rejected_updates_total": ("reason", "Rejected updates by reason."),
    "excluded_clients_total": ("", "Exclusions of clients."),
    "staleness": ("", "Mean staleness of the last aggregated updates."),
    "connected_clients": ("", "Connected clients."),
    "clients_in_tier": ("tier", "Clients by tier."),
    "client_latency_seconds": ("quantile", "Quantiles of the clients' measured latencies."),
    "metric": ("metric", "Last value of each metric of the model; the prefix clients_ marks evaluations on clients."),
    "finished": ("", "Whether the run has finished."),
}
"""Metrics by name without `lesson_`: a label in addition to `run`, the name of the folder, and a help text."""


class Prometheus:
    """Writes RUN/metrics.prom, or the file `path`, after every round, for node_exporter's textfile collector.

    With a `port`, it also serves the metrics over HTTP while the run is in progress, by default only to this machine.
    """

    def __init__(self, path: Path | str | None = None, port: int | None = None, address: str = "127.0.0.1") -> None:
        if importlib.util.find_spec("prometheus_client") is None:
            remedy = "run pip install 'lesson-fl[prometheus]', or '.[prometheus]' in a clone"
            raise InputError(f"prometheus-client is not installed; {remedy}")
        if path is not None and Path(path).suffix != ".prom":
            raise InputError(f"path must end with .prom, otherwise node_exporter ignores the file, got {str(path)!r}")
        check_value("port", port, Annotated[int, Field(ge=1, le=65535, strict=True)] | None)
        self._path, self._port, self._address = None if path is None else Path(path).absolute(), port, address

    def begin(self, settings: Settings, folder: Path, earlier: Sequence[Line]) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        self._run, self._file = folder.name, self._path or folder / FILE
        self._values: dict[str, dict[str, float]] = {name: {} for name in METRICS}
        self._values |= {"deadline_seconds": {"": settings.strategy.deadline_s}, "finished": {"": 0.0}}
        for line in earlier:
            self._add(line)
        self._registry, self._families = CollectorRegistry(), self._current()
        self._registry.register(self)
        self._server = None
        if self._port is not None:
            self._server, _ = start_http_server(self._port, self._address, self._registry)

    def line(self, line: Line) -> None:
        self._add(line)
        self._write()

    def end(self, summary: Line | None) -> None:
        if summary is not None:
            name = summary.get("metric", "accuracy")
            self._values["metric"] |= numbers({name: summary[name], LOSS: summary[LOSS], **summary.get("metrics", {})})
            self._values["finished"][""] = 1.0
        self._write()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def collect(self) -> "Sequence[Metric]":
        """Return the current metrics, also to the thread that serves them."""
        return self._families

    def _add(self, line: Line) -> None:
        """Add a round to the totals, and replace the values of the last one."""
        if "merged" in line:  # lines of large fleets do not have it
            self._count("aggregated_updates_total", {"": len(line["merged"])})
        self._count("uploads_total", {"": line["uploads"]})
        self._count("uploaded_bytes_total", {"": line["bytes_up"]})
        self._count("downloaded_bytes_total", {"": line["bytes_down"]})
        self._count("excluded_clients_total", {"": len(line.get("excluded", ()))})
        rejections = line.get("rejections", {})
        self._count("rejected_updates_total", {reason: len(clients) for reason, clients in rejections.items()})
        last = {"round": line["round"], "time_seconds": line["time_s"], "last_round_timestamp_seconds": time.time()}
        last |= {"staleness": line["staleness"], "connected_clients": line.get("connected")}
        self._values |= {name: {"": value} for name, value in last.items() if value is not None}
        self._values |= {"clients_in_tier": line.get("tiers", {}), "client_latency_seconds": line.get("latency_s", {})}
        scores = {name: value for name, value in numbers(line).items() if name == LOSS or name not in RESERVED}
        for means in line.get("client_metrics", {}).values():
            scores |= {f"clients_{name}": value for name, value in numbers(means).items()}
        self._values["metric"] |= scores

    def _count(self, name: str, counts: Mapping[str, float]) -> None:
        """Increase a counter for each label."""
        totals = self._values[name]
        totals |= {label: totals.get(label, 0.0) + count for label, count in counts.items()}

    def _write(self) -> None:
        from prometheus_client import write_to_textfile

        self._families = self._current()
        write_to_textfile(str(self._file), self._registry)

    def _current(self) -> "list[Metric]":
        """Return all metrics that have a value as Prometheus represents them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: list[Metric] = []
        for name, (label, text) in METRICS.items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(f"lesson_{name}", text, labels=["run", label] if label else ["run"])
            for key, value in self._values[name].items():
                family.add_metric([self._run, key] if label else [self._run], value)
            if self._values[name]:
                families.append(family)
        return families

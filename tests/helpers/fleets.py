"""Small fleets with round numbers, and helpers for simulations."""

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lesson.clock.faults import Disconnections
from lesson.clock.loop import RoundLoop
from lesson.clock.records import RoundRecord
from lesson.clock.worlds import VaryingWorld
from lesson.core.arrays import FloatArray, IntArray
from lesson.fleet.fleet import Fleet, draw_fleet
from lesson.radio.link import Link
from lesson.settings.settings import Settings
from lesson.strategies.base import Strategy


def make_fleet(
    latency_s: list[float],
    compute_share: float = 0.5,
    weight: list[float] | None = None,
    local_steps: int = 1,
    shared_upload_s: list[float] | None = None,
    ensure_first_tier: bool = False,
) -> Fleet:
    """Return a fleet with these latencies; client i spends i + 1 joules on computing and 10·(i + 1) on uploading.

    By default, uploads on the shared channel take as long as on a client's own; the transmit power is the same.
    """
    latencies = np.array(latency_s, dtype=float)
    upload = (1 - compute_share) * latencies
    shared = upload if shared_upload_s is None else np.array(shared_upload_s)
    joules = np.arange(1.0, len(latencies) + 1)
    return Fleet(
        names=range(len(latencies)),
        compute_s=compute_share * latencies,
        upload_s=upload,
        shared_upload_s=shared.copy(),
        latency_s=latencies,
        download_s=np.zeros(len(latencies)),
        compute_j=joules,
        transmit_j=10 * joules,
        shared_transmit_j=10 * joules if shared_upload_s is None else 10 * joules * shared / upload,
        num_samples=np.full(len(latencies), 100),
        client_weight=np.ones(len(latencies)) if weight is None else np.array(weight, dtype=float),
        local_steps=np.full(len(latencies), local_steps),
        batch_samples=np.full(len(latencies), 20),
        model_bits=100e3,
        ensure_first_tier=ensure_first_tier,
    )


def make_radio_fleet(snr: list[float], compute_s: list[float], **link: Any) -> Fleet:
    """Return clients with these SNRs on bands of 1 Hz, which upload 6 bits at 2 W, and compute at 2 GHz for 1 J."""
    drawn = draw_fleet(Settings(num_clients=len(snr), power_w=2.0, cpu_hz=[2e9, 2e9]))
    channel, computing_s = Link(1.0, 1.0, **link), np.array(compute_s, dtype=float)
    upload_s = 6 / channel.rate_bps(np.array(snr))
    return replace(
        drawn,
        compute_s=computing_s,
        upload_s=upload_s,
        latency_s=computing_s + upload_s,
        compute_j=np.ones(len(snr)),
        transmit_j=2 * upload_s,
        snr_db=10 * np.log10(snr),
        model_bits=6.0,
        link=channel,
    )


def sealed(fleet: Fleet) -> Fleet:
    """Return the fleet with read-only arrays, so that writing to them raises an error."""
    for array in vars(fleet).values():
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
    return fleet


class Scripted:
    """Disconnections as written down: after which part of a piece of work, and for how long."""

    def __init__(self, script: dict[tuple[int, int], tuple[float, float]], detection_delay_s: float = 0.0) -> None:
        self.script, self.detection_delay_s = script, detection_delay_s

    def moments(self, clients: IntArray, index: IntArray) -> FloatArray:
        return self._column(clients, index, 0, np.inf)

    def offline_s(self, clients: IntArray, index: IntArray) -> FloatArray:
        return self._column(clients, index, 1, 0.0)

    def _column(self, clients: IntArray, index: IntArray, column: int, otherwise: float) -> FloatArray:
        keys = zip(clients.tolist(), index.tolist(), strict=True)
        return np.array([self.script[key][column] if key in self.script else otherwise for key in keys])


def disconnecting(
    strategy: Strategy,
    fleet: Fleet,
    disconnections: Any,
    *,
    settings: Settings | None = None,
    seed: int = 0,
) -> RoundLoop:
    """Return a simulation with scripted disconnections: an object with the methods of `Disconnections`."""
    script: Disconnections = disconnections
    return RoundLoop(strategy, VaryingWorld(fleet, settings or Settings(), seed, script), seed=seed)


def steps(loop: Any, count: int) -> list[RoundRecord]:
    """Return the records of the next rounds; fail if the run ends before."""
    records = [loop.step() for _ in range(count)]
    assert None not in records
    return records


def resume(before: Any, after: Any) -> Any:
    """Restore the state of a loop in another one, as from a checkpoint, and return the latter."""
    values, arrays = before.state()
    copies = {name: array.copy() for name, array in arrays.items()}
    after.restore(json.loads(json.dumps(values, allow_nan=False)), copies)
    return after


def peak_bytes(simulation: RoundLoop) -> int:
    """Return the peak memory in bytes that five rounds allocate after the first one."""
    simulation.step()
    tracemalloc.start()
    for _ in range(5):
        simulation.step()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def traced(path: Path, text: str) -> str:
    """Write a CSV file from rows separated by spaces, and return its path as a string."""
    path.write_text("\n".join(text.split()) + "\n")
    return str(path)


def fields(record: RoundRecord | None) -> dict[str, Any]:
    """Return the fields of a record as plain values, which can be compared exactly."""
    assert record is not None
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(record).items()}

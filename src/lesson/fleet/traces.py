"""Recorded behavior of clients, read from CSV files: times of local trainings, availability, positions and channels.

The files use the fleet's client names; rows may be in any order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from lesson.core.arrays import BoolArray, FloatArray, IntArray
from lesson.core.csv_rows import read_table
from lesson.core.errors import InputError

MAX_SNR_DB = 200
"""Limit of a signal-to-noise ratio in a file, up or down; beyond it, the number is not a measurement."""


@dataclass(frozen=True, eq=False)
class WorkTrace:
    """Measured times of every local training in seconds, concatenated over clients; client i starts at offsets[i]."""

    compute_s: FloatArray
    upload_s: FloatArray
    offsets: IntArray
    is_lost: BoolArray
    """Whether a local training failed: its update is lost after its compute and upload time."""

    def at(self, clients: IntArray, index: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return compute and upload time of each client's index-th local training (from 0); the trace repeats."""
        rows = self._rows(clients, index)
        return self.compute_s[rows], self.upload_s[rows]

    def fails(self, clients: IntArray, index: IntArray) -> BoolArray:
        """Return whether each client's index-th local training (from 0) fails; the trace repeats."""
        return self.is_lost[self._rows(clients, index)]

    def _rows(self, clients: IntArray, index: IntArray) -> IntArray:
        start = self.offsets[clients]
        return start + index % (self.offsets[clients + 1] - start)

    def usual(self, clients: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return the mean compute time and the mean upload time of each client."""
        compute_s, upload_s = self._means
        return compute_s[clients], upload_s[clients]

    @cached_property
    def _means(self) -> tuple[FloatArray, FloatArray]:
        starts, counts = self.offsets[:-1], np.diff(self.offsets)
        return np.add.reduceat(self.compute_s, starts) / counts, np.add.reduceat(self.upload_s, starts) / counts


class Presence:
    """When each client is available: disjoint intervals [from_s, to_s) that do not touch; always, if it has none."""

    def __init__(self, num_clients: int, client: IntArray, from_s: FloatArray, to_s: FloatArray) -> None:
        self._is_listed: BoolArray = np.zeros(num_clients, dtype=np.bool_)
        self._is_listed[client] = True
        ends = to_s < np.inf
        when_s, who = np.concatenate([from_s, to_s[ends]]), np.concatenate([client, client[ends]])
        in_time = np.argsort(when_s, kind="stable")
        self._event_s, self._event_client = when_s[in_time], who[in_time]
        self._event_comes: BoolArray = in_time < len(from_s)
        self._arrival_s: FloatArray = np.sort(from_s)
        keys = self._key(client, from_s)
        order = np.argsort(keys)
        # A dummy interval of client −1 comes first, so that every lookup finds a preceding interval.
        self._keys: IntArray = np.concatenate([[-1], keys[order]])
        self._client: IntArray = np.concatenate([[-1], client[order]])
        self._to_s: FloatArray = np.concatenate([[0.0], to_s[order]])

    def leaves_s(self, clients: IntArray, now_s: float) -> FloatArray:
        """Return when each client leaves, in seconds: inf if never, `now_s` if it is not available now."""
        if not len(self._event_s):
            return np.full(len(clients), np.inf)
        places = np.searchsorted(self._keys, self._key(clients, now_s), side="right") - 1
        began = self._client[places] == clients
        until_s = np.where(began, np.maximum(self._to_s[places], now_s), now_s)
        return np.where(self._is_listed[clients], until_s, np.inf)

    def is_available(self, now_s: float) -> BoolArray:
        """Return which clients are available, shape (num_clients,)."""
        there = ~self._is_listed
        listed = np.flatnonzero(self._is_listed)
        there[listed] = self.leaves_s(listed, now_s) > now_s
        return there

    def next_change_s(self, now_s: float) -> float:
        """Return the next time after `now_s` at which any client becomes available or leaves; inf if there is none."""
        return _next(self._event_s, now_s)

    def next_arrival_s(self, now_s: float) -> float:
        """Return the next time after `now_s` at which any client becomes available; inf if there is none."""
        return _next(self._arrival_s, now_s)

    def changes(self, after_s: float, until_s: float) -> tuple[IntArray, IntArray]:
        """Return the clients that are available at `until_s` but not at `after_s`, and the reverse, both sorted."""
        low, high = np.searchsorted(self._event_s, [after_s, until_s], side="right")
        clients, places = np.unique(self._event_client[low:high], return_inverse=True)
        net = np.bincount(places, np.where(self._event_comes[low:high], 1, -1), len(clients))
        return clients[net > 0], clients[net < 0]

    def _key(self, clients: IntArray, seconds: FloatArray | float) -> IntArray:
        """Return integers in the order of (client, time); times between the same two events have the same integer."""
        return clients * (len(self._event_s) + 1) + np.searchsorted(self._event_s, seconds, side="right")


def read_work(path: Path | str, names: Sequence[int | str]) -> WorkTrace:
    """Read a file with `client,round,compute_s,upload_s[,lost]`; rounds count each client's local trainings from 1.

    `lost` is 1 for a local training that failed, otherwise 0.
    """
    table = read_table(path, "trace", ("round", "compute_s", "upload_s"), ("lost",)).of_fleet(names)
    rounds, compute_s, upload_s, lost = table.numbers.values()
    table.check("lost", (lost == 0) | (lost == 1) | np.isnan(lost), "0 or 1")
    table.check("round", (rounds >= 1) & (rounds <= 1e9) & (np.floor(rounds) == rounds), "a whole number from 1 to 1e9")
    table.check_finite("compute_s", "upload_s")
    table.check("compute_s", (compute_s > 0) | (upload_s > 0), "> 0 where upload_s is 0")
    table = table.sorted_by("round")
    rounds, compute_s, upload_s, lost = table.numbers.values()
    table.check_pairs(rounds[1:] == rounds[:-1], "has round {round:.12g} twice")
    offsets = table.offsets()
    expected = np.arange(1, len(rounds) + 1) - offsets[table.client]
    if not np.array_equal(rounds, expected):
        row = int(np.argmax(rounds != expected))
        there, missing = f"{rounds[row]:.0f}", expected[row]
        there = there if missing == 1 else f"{missing - 1} and {there}"
        raise InputError(
            f"{table.where(row)}: {table.who(row)} has round {there} but not {missing}; add the missing row"
        )
    return WorkTrace(compute_s, upload_s, offsets, lost == 1)


def read_presence(path: Path | str, names: Sequence[int | str]) -> Presence:
    """Read a file with `client,from_s,to_s`: one interval [from_s, to_s) of availability per row, `to_s` may be inf.

    A client that is not in the file is always available. Intervals that touch are joined.
    """
    table = read_table(path, "presence", ("from_s", "to_s")).of_fleet(names)
    table.check_finite("from_s")
    table.check("to_s", table.numbers["to_s"] > table.numbers["from_s"], "> from_s, or inf")
    table = table.sorted_by("from_s")
    from_s, to_s = table.numbers.values()
    table.check_pairs(from_s[1:] < to_s[:-1], "has overlapping intervals at {from_s:.12g} s")
    goes_on = (from_s[1:] == to_s[:-1]) & (table.client[1:] == table.client[:-1])
    begins, ends = np.concatenate([[True], ~goes_on]), np.concatenate([~goes_on, [True]])
    return Presence(len(names), table.client[begins], from_s[begins], to_s[ends])


def read_positions(
    path: Path | str, names: Sequence[int | str], area_km: float
) -> tuple[FloatArray, FloatArray, FloatArray, IntArray]:
    """Read a file with `client,time_s,x_km,y_km`; return times in s, x and y in km, and each client's first row.

    Rows are in the order of the fleet, and the times of each client ascend. The last array has shape
    (num_clients + 1,), with the number of rows at the end. Positions must lie in the square with side `area_km`, whose
    center (0, 0) is the base station.
    """
    table = read_table(path, "positions", ("time_s", "x_km", "y_km")).of_fleet(names)
    table.check_finite("time_s")
    inside = f"from {-area_km / 2:g} to {area_km / 2:g}, within [fleet] area_km = {area_km:g}"
    for column in ("x_km", "y_km"):
        table.check(column, np.abs(table.numbers[column]) <= area_km / 2, inside)
    table = table.sorted_by("time_s")
    time_s, x_km, y_km = table.numbers.values()
    table.check_pairs(time_s[1:] == time_s[:-1], "has time_s {time_s:.12g} twice")
    return time_s, x_km, y_km, table.offsets()


def read_snr(path: Path | str) -> tuple[FloatArray, FloatArray, IntArray]:
    """Read a file with `trace,time_s,snr_db`; return times in s, SNR in dB and the place of each trace's first row.

    Traces are in the order of their first rows, and the times of each trace ascend. The places have shape
    (num_traces + 1,), with the number of rows at the end.
    """
    table = read_table(path, "snr_trace", ("time_s", "snr_db"), kind="trace")
    table.check_finite("time_s")
    table.check("snr_db", np.abs(table.numbers["snr_db"]) <= MAX_SNR_DB, f"from -{MAX_SNR_DB} to {MAX_SNR_DB}")
    table = table.sorted_by("time_s")
    time_s, snr_db = table.numbers.values()
    table.check_pairs(time_s[1:] == time_s[:-1], "has time_s {time_s:.12g} twice")
    return time_s, snr_db, table.offsets()


def _next(times_s: FloatArray, now_s: float) -> float:
    place = int(np.searchsorted(times_s, now_s, side="right"))
    return float(times_s[place]) if place < len(times_s) else np.inf

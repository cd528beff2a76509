"""Measured signal-to-noise ratios over time: each client follows one of several traces, which repeat at their end."""

from collections.abc import Callable

import numpy as np

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.random import key, uniforms


class SnrTraces:
    """SNR of each client over time, constant from one row of its trace to the next.

    Client i follows trace i; after the last trace, clients begin again at the first. The last row of a trace lasts as
    long as the row before it, then the trace repeats. A trace with a single row is constant.

    Args:
        time_s: Times of all rows in seconds, trace by trace and ascending within each.
        snr_db: SNR from each time on, in dB.
        offsets: Place of each trace's first row, and of the end of the last trace, shape (num_traces + 1,).
        num_clients: Number of clients.
        coherence_s: Starts are drawn in multiples of this, so that rows and blocks of time coincide.
        seed: Random seed of the starts; None if all clients start at the beginning of their traces.
    """

    def __init__(
        self,
        time_s: FloatArray,
        snr_db: FloatArray,
        offsets: IntArray,
        num_clients: int,
        coherence_s: float,
        seed: int | None,
    ) -> None:
        first, self._last = offsets[:-1], offsets[1:] - 1
        own = np.repeat(np.arange(len(first)), np.diff(offsets))
        since_s = time_s - time_s[first][own]
        length_s = since_s[self._last]
        last_row_s = length_s - since_s[np.maximum(self._last - 1, first)]
        self._period_s: FloatArray = np.where(length_s > 0, length_s + last_row_s, 1.0)
        # Traces follow each other on one axis, so that a single search finds the rows of all clients.
        self._begins_s: FloatArray = np.concatenate([[0.0], np.cumsum(self._period_s)[:-1]])
        self._axis_s: FloatArray = self._begins_s[own] + since_s
        self._first, self._snr = first, np.power(10.0, snr_db / 10)
        self._row_s: FloatArray = np.diff(since_s, append=0.0)
        self._row_s[self._last] = self._period_s - length_s
        everybody = np.arange(num_clients)
        self._trace: IntArray = everybody % len(first)
        self._start_s: FloatArray = np.zeros(num_clients)
        if seed is not None:
            blocks = np.maximum(np.floor(self._period_s / coherence_s), 1)[self._trace]
            self._start_s = coherence_s * np.floor(uniforms(key(seed, "SNR trace"), everybody) * blocks)

    def at(self, clients: IntArray, times_s: FloatArray) -> FloatArray:
        """Return the SNR, not in dB, of clients (n, 1) at times (n, K) or (1, K), shape (n, K)."""
        trace = self._trace[clients]
        within_s = (times_s + self._start_s[clients]) % self._period_s[trace]
        rows = np.searchsorted(self._axis_s, self._begins_s[trace] + within_s, side="right") - 1
        # Rounding of the sum may lead to the row of a neighboring trace.
        return self._snr[np.clip(rows, self._first[trace], self._last[trace])]

    def mean(self, function: Callable[[FloatArray], FloatArray]) -> FloatArray:
        """Return the mean of a function of the SNR over each client's trace, shape (num_clients,)."""
        total = np.add.reduceat(function(self._snr) * self._row_s, self._first)
        return (total / self._period_s)[self._trace]

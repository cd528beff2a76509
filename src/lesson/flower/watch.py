"""Stops a run whose clients all fail, which would otherwise last for all its rounds and return the initial model."""

from collections import Counter

from lesson.clock.ledger import Ledger
from lesson.clock.records import RoundRecord
from lesson.clock.rejections import ALREADY_SEEN
from lesson.clock.worlds.clients import TOO_LATE
from lesson.core.errors import RunStoppedError

MAX_ROUNDS_WITHOUT_UPDATE = 10
SHOWN = 3


class UpdateWatch:
    """Raises RunStoppedError after `limit` rounds in which every update failed, or in which nobody trained.

    A round counts if it aggregates nothing, none of its updates waits at the server, and something failed in it or no
    update is in flight. It does not count while a client trains whose last update did not fail: a client in tier 5 is
    not due before the fifth round. A round that aggregates something resets the count. `remedy` says what to do.
    """

    def __init__(self, limit: int, remedy: str) -> None:
        self.limit, self._remedy = limit, remedy
        self.num_rounds = 0
        """Number of rounds that count since the last one that aggregated something."""
        self._failing: set[int] = set()
        """Clients whose last update was rejected."""
        self._reasons = Counter[str]()
        """Number of failed updates by reason and detail since the last aggregation."""

    def see(self, record: RoundRecord, ledger: Ledger) -> None:
        """Look at a round that has just closed."""
        if len(record.merged):
            self.num_rounds = 0
            self._reasons.clear()
        failures = [one for one in record.rejections if one.reason not in (TOO_LATE, ALREADY_SEEN)]
        self._failing -= set(record.merged.tolist())
        self._failing |= {one.client for one in failures}
        self._reasons.update(f"{one.reason} ({one.detail})" if one.detail else one.reason for one in failures)
        if len(record.merged) or len(ledger.at_server):
            return
        in_flight = set(ledger.clients_in_flight().tolist())
        if in_flight <= self._failing and (failures or not in_flight):
            self.num_rounds += 1
        if self.num_rounds >= self.limit:
            raise self._error(self.num_rounds)

    def check_end(self, num_rounds: int, version: int) -> None:
        """Raise RunStoppedError if a run ends with its initial model, version 0, because updates failed."""
        if version == 0 and self._reasons:
            raise self._error(num_rounds)

    def _error(self, num_rounds: int) -> RunStoppedError:
        return RunStoppedError(f"no update was aggregated in {num_rounds} rounds: {self._why()}; {self._remedy}")

    def _why(self) -> str:
        """Return the most frequent reasons."""
        if not self._reasons:
            return "the strategy started no client, or no update arrived"
        named = [f"{count} × {reason}" for reason, count in self._reasons.most_common(SHOWN)]
        more = len(self._reasons) - len(named)
        return ", ".join(named) + (f" and {more} other reasons" if more > 1 else " and another reason" if more else "")

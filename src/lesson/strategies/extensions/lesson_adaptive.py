"""LESSON with an adaptive deadline, which L. Yu, X. Sun, R. Albelaihi, C. Yi leave to future work in "Latency Aware
Semi-synchronous Client Selection and Model Aggregation for Wireless Federated Learning" (see lesson.py).

With short rounds, the model changes often, but in directions that a few fast clients determine and that slower clients
may not confirm. The server measures the confirmation c = Σ a·v·d / Σ a·d·d over updates that started from an older
version, where v is the update, d the change of the global model since that version, and a the update's weight. If all
clients pull in the same direction, c is near 1; if the model follows the noise of a few, c is near 0.

Every 50 rounds, τ is multiplied by exp(0.3·(c* − c)), with c* = `agreement` and c* − c limited to ±0.4: rounds get
longer if little is confirmed and shorter if much is. Older measurements fade. τ is limited so that between a tenth and
a half of the reachable clients are in tier 1, and changes of less than 5 % are not made. It starts at `deadline_s`, or
at the nearest value within these limits.

A change of 5 % takes |c* − c| > 0.163, so τ stays as it is once c is that close to c*, whether or not c* is reached.
With `accumulate`, changes that are not made add up until they come to 5 %, so that τ keeps adapting
until c is c* or τ reaches a limit.

A new τ takes effect when a round opens: clients that start are assigned to tiers by it. Updates in flight are due at
the first round end by which they were expected. Without a model server there is no confirmation, and τ does not change.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from lesson.core.errors import InputError
from lesson.strategies.base import RoundPlan, ServerView
from lesson.strategies.checks import check_flag, check_number
from lesson.strategies.lesson import Lesson

LOOK_ROUNDS = 50
"""Number of rounds between adjustments of τ."""
GAIN, MOST = 0.3, 0.4
"""τ is multiplied by exp(GAIN·(c* − c)), where c* − c is limited to ±MOST."""
FADE, FADE_MOVED = 0.7, 0.2
"""Factor of older measurements at each adjustment; FADE_MOVED if τ has changed."""
SHARES = (0.1, 0.5)
"""Smallest and largest share of clients in tier 1."""
LEAST_STEP = 0.05
"""Smallest relative change of τ that is made."""


@dataclass
class LessonAdaptive(Lesson):
    """LESSON with a deadline that adapts to how well slow clients confirm the updates of fast ones.

    The other options are those of `Lesson`.

    Args:
        deadline_s: Deadline τ in seconds with which the run starts, > 0 and finite.
        agreement: Target c* of the confirmation, > 0 and <= 1. A higher target gives longer rounds.
        accumulate: Whether changes of less than 5 % add up until they can be made; otherwise, they are skipped.
    """

    agreement: float = 0.25
    accumulate: bool = False
    needs: ClassVar[frozenset[str]] = frozenset({"confirmation"})
    _seen: tuple[float, float] = field(default=(0.0, 0.0), init=False, repr=False)
    """The two sums of the signal at the last adjustment."""
    _recent: tuple[float, float] = field(default=(0.0, 0.0), init=False, repr=False)
    """Sums of their increments up to the last adjustment, older ones faded."""
    _bounds: tuple[float, float] | None = field(default=None, init=False, repr=False)
    """Smallest and largest τ; None before they are needed."""
    _held_back: float = field(default=1.0, init=False, repr=False)
    """Factor by which changes that were not made would have multiplied τ; 1 unless they accumulate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("agreement", self.agreement, most=1)
        check_flag("accumulate", self.accumulate)
        if math.isinf(self.deadline_s):
            raise InputError("deadline_s must be finite for lesson-adaptive, which starts with it, got inf")

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        note = ""
        if view.round % LOOK_ROUNDS == 1 and "confirmation" in view.signals:
            note = self._look(view) if view.round > 1 else self._move(view, self.deadline_s, "")
        return replace(super().open_round(view, rng), note=note)

    def state(self) -> dict[str, Any]:
        bounds = None if self._bounds is None else list(self._bounds)
        kept = {"seen": list(self._seen), "recent": list(self._recent), "bounds": bounds}
        return super().state() | kept | ({"held_back": self._held_back} if self.accumulate else {})

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._seen, self._recent = tuple(state["seen"]), tuple(state["recent"])
        self._bounds = None if state["bounds"] is None else tuple(state["bounds"])
        self._held_back = state.get("held_back", 1.0)

    def _look(self, view: ServerView) -> str:
        """Adjust τ to the recent confirmation and return a note."""
        now = view.signals["confirmation"]
        agreed, gone = (old + new - seen for old, new, seen in zip(self._recent, now, self._seen, strict=True))
        self._seen, before_s, factor, why = now, self.deadline_s, 1.0, "no stale updates"
        if gone > 0:
            factor = math.exp(GAIN * float(np.clip(self.agreement - agreed / gone, -MOST, MOST)))
            why = f"{agreed / gone:.2f} confirmed, target {self.agreement:g}"
        wished = self._held_back * factor
        said = self._move(view, wished * before_s, why) or f"deadline stays at {before_s:.4g} s: {why}"
        if self.accumulate:
            low_s, high_s = self._limits(view)  # a wish beyond them must not build up: it would delay the way back
            stays = self.deadline_s == before_s
            self._held_back = float(np.clip(wished, low_s / before_s, high_s / before_s)) if stays else 1.0
        fade = FADE if self.deadline_s == before_s else FADE_MOVED
        self._recent = fade * agreed, fade * gone
        return said

    def _move(self, view: ServerView, wished_s: float, why: str) -> str:
        """Set τ to `wished_s` within its limits and return a note; return "" if the change is too small to be made."""
        before_s, bounded_s = self.deadline_s, float(np.clip(wished_s, *self._limits(view)))
        if abs(bounded_s / before_s - 1) < LEAST_STEP:
            return ""
        held = "" if bounded_s == wished_s else "limited so that a tenth to a half of the clients are in tier 1"
        self.deadline_s = bounded_s
        return f"deadline {before_s:.4g} s → {bounded_s:.4g} s: {'; '.join(filter(None, [why, held]))}"

    def _limits(self, view: ServerView) -> tuple[float, float]:
        """Return the smallest and largest τ, computed when a client is first reachable; (0, inf) before."""
        if self._bounds is None:
            reachable_s = view.first_latency_s[np.isfinite(view.first_latency_s)]
            if not len(reachable_s):
                return 0.0, math.inf
            low_s, high_s = np.quantile(reachable_s, SHARES).tolist()
            self._bounds = low_s, high_s
        return self._bounds

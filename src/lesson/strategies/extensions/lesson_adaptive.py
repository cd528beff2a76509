"""LESSON with a deadline that adapts, which L. Yu, X. Sun, R. Albelaihi, C. Yi leave to future work in "Latency Aware
Semi-synchronous Client Selection and Model Aggregation for Wireless Federated Learning" (see lesson.py).

Short rounds move the model often, but along what few fast clients say; when the others report, they may not agree. The
server sees how much of it they confirm: for the updates that come from an older version, c = Σ a·v·d / Σ a·d·d, where v
is the update, d the way the model has gone since the client started, and a what the update counts for. If everybody
pulls the same way c is near 1; if the model only follows the noise of a few, near 0.

Every LOOK_ROUNDS rounds τ is multiplied by exp(GAIN·(c* − c)), c* = `agreement`: little is confirmed, rounds get
longer; much is, they get shorter. Each look fades what earlier ones saw. τ stays where between a tenth and a half of
the connected clients are in tier 1, and steps of less than 5 % are not taken. It begins at `deadline_s`, or the
nearest that is allowed.

A new τ takes effect when a round opens: whoever starts is put into its tier by it. Work in flight goes on and is due at
the first round end by which it was expected. In a run of timing alone nobody confirms anything and τ stays.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from lesson.core.errors import InputError
from lesson.strategies.base import RoundPlan, ServerView
from lesson.strategies.checks import check_number
from lesson.strategies.lesson import Lesson

LOOK_ROUNDS = 50
GAIN, MOST = 0.3, 0.4
"""How strongly τ answers, and to how large a difference at most."""
FADE, FADE_MOVED = 0.7, 0.2
"""What is left of earlier looks at the next, and at the next after τ has changed."""
SHARES = (0.1, 0.5)
LEAST_STEP = 0.05


@dataclass
class LessonAdaptive(Lesson):
    """LESSON whose deadline follows how far slow clients confirm what fast ones did."""

    agreement: float = 0.25
    needs: ClassVar[frozenset[str]] = frozenset({"confirmation"})
    _seen: tuple[float, float] = field(default=(0.0, 0.0), init=False, repr=False)
    """The signal's two sums at the last look."""
    _recent: tuple[float, float] = field(default=(0.0, 0.0), init=False, repr=False)
    """What they have grown by lately."""
    _bounds: tuple[float, float] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("agreement", self.agreement, most=1)
        if math.isinf(self.deadline_s):
            raise InputError("deadline_s must be finite for lesson-adaptive, which begins there, got inf")

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        note = ""
        if view.round % LOOK_ROUNDS == 1 and "confirmation" in view.signals:
            note = self._look(view) if view.round > 1 else self._move(view, self.deadline_s, "")
        return replace(super().open_round(view, rng), note=note)

    def state(self) -> dict[str, Any]:
        kept = {"deadline_s": self.deadline_s, "seen": list(self._seen), "recent": list(self._recent)}
        return super().state() | kept

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.deadline_s = state["deadline_s"]
        self._seen, self._recent = tuple(state["seen"]), tuple(state["recent"])

    def _look(self, view: ServerView) -> str:
        """Set τ by what was confirmed since the last look; says why."""
        now = view.signals["confirmation"]
        agreed, gone = (old + new - seen for old, new, seen in zip(self._recent, now, self._seen, strict=True))
        self._seen, before_s, factor, why = now, self.deadline_s, 1.0, "nobody reported on an older model"
        if gone > 0:
            factor = math.exp(GAIN * float(np.clip(self.agreement - agreed / gone, -MOST, MOST)))
            why = f"{agreed / gone:.2f} confirmed, {self.agreement:g} wished"
        said = self._move(view, factor * before_s, why) or f"deadline stays at {before_s:.4g} s: {why}"
        fade = FADE if self.deadline_s == before_s else FADE_MOVED
        self._recent = fade * agreed, fade * gone
        return said

    def _move(self, view: ServerView, wished_s: float, why: str) -> str:
        """Change τ to a wish, as far as the bounds let it, and say so; or leave it, if that is a small step."""
        before_s, bounded_s = self.deadline_s, float(np.clip(wished_s, *self._limits(view)))
        if abs(bounded_s / before_s - 1) < LEAST_STEP:
            return ""
        held = "" if bounded_s == wished_s else "held where a tenth to a half of the clients are in tier 1"
        self._set_deadline(view, bounded_s)
        return f"deadline {before_s:.4g} s → {bounded_s:.4g} s: {'; '.join(filter(None, [why, held]))}"

    def _limits(self, view: ServerView) -> tuple[float, float]:
        """The least and the greatest τ, found once; any, where nobody can be reached."""
        if self._bounds is None:
            reachable_s = view.first_latency_s[np.isfinite(view.first_latency_s)]
            low_s, high_s = np.quantile(reachable_s, SHARES).tolist() if len(reachable_s) else (0.0, math.inf)
            self._bounds = low_s, high_s
        return self._bounds

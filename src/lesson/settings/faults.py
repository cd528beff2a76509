"""What goes wrong on purpose: clients that drop out, and uploads that are wrong.

All of it is drawn by (seed, client, piece of work), so that it does not depend on who else works, or on a restart.
"""

import math
from typing import Annotated, ClassVar, TypedDict

import numpy as np
from pydantic import Field, field_validator

from lesson.core.arrays import BoolArray, FloatArray, IntArray
from lesson.core.random import exponentials, key, uniforms
from lesson.core.validation import Checked, Positive

MAX_S = 1e9
Share = Annotated[float, Field(ge=0, le=1, strict=True)]
Shapes = dict[str, tuple[int, ...]]
"""The arrays of a model, by name."""
_DROPOUTS = ("dropout_before", "dropout_during")
_VALUES = ("nan", "infinity", "scaled", "flipped")
_ARRAYS = ("wrong_shape", "wrong_arrays")
_COPIES = ("duplicated", "replayed")


class FaultSettings(Checked):
    """What goes wrong on purpose. By default nothing does."""

    section: ClassVar[str] = "faults"

    dropout_before: Share = Field(0.0, description="probability that a client drops out before a piece of work")
    dropout_during: Share = Field(0.0, description="probability that it drops out while it trains, at any moment of it")
    away_s: Annotated[float, Field(ge=1, strict=True, allow_inf_nan=True)] = Field(
        100.0, description="mean seconds until it is back, exponentially distributed; inf for never"
    )
    gone: Share = Field(0.0, description="probability that one who drops out never comes back")
    notice_s: Annotated[float, Field(ge=0, le=MAX_S, strict=True)] = Field(
        0.0, description="seconds until the server notices that a client has dropped out"
    )
    wrong_clients: Share = Field(1.0, description="share of the clients whose uploads may be wrong")
    nan: Share = Field(0.0, description="probability that an upload of theirs has a value that is no number")
    infinity: Share = Field(0.0, description="that it has an infinite value")
    wrong_shape: Share = Field(0.0, description="that one of its arrays has another shape")
    wrong_arrays: Share = Field(0.0, description="that one of its arrays is missing")
    scaled: Share = Field(0.0, description="that it moves the model `scale` times as far as training did")
    scale: Positive = Field(10.0, description="how much farther")
    flipped: Share = Field(0.0, description="that it moves the model the opposite way")
    duplicated: Share = Field(0.0, description="that it arrives twice")
    replayed: Share = Field(0.0, description="that the client's upload before arrives once more with it")

    @field_validator("away_s")
    @classmethod
    def _sensible(cls, away_s: float) -> float:
        if MAX_S < away_s < math.inf:
            raise ValueError(f"must be at most {MAX_S:g}, or inf for never, got {away_s}")
        return away_s

    def _any(self, *names: str) -> bool:
        return any(getattr(self, name) > 0 for name in names)

    @property
    def drop_out(self) -> bool:
        """Whether clients may drop out."""
        return self._any(*_DROPOUTS)

    @property
    def upload_wrong(self) -> bool:
        """Whether uploads may be wrong."""
        return self.wrong_clients > 0 and self._any(*_VALUES, *_ARRAYS, *_COPIES)

    def without_effect(self, num_clients: int) -> list[str]:
        """Settings that were changed and change nothing, a line each, with what they go with."""
        wrong = self._any(*_VALUES, *_ARRAYS, *_COPIES)
        needed = {
            ("away_s", "gone", "notice_s"): (self.drop_out, "dropout_before or dropout_during"),
            ("wrong_clients",): (wrong, "something that goes wrong, such as flipped"),
            ("scale",): (self.scaled > 0, "scaled > 0"),
        }
        told = self.unused(needed, "faults.")
        if wrong and not self.num_wrong(num_clients):
            told.append(f"faults.wrong_clients = {self.wrong_clients} of {num_clients} clients is nobody")
        return told

    def num_wrong(self, num_clients: int) -> int:
        """How many of so many clients may send wrong uploads."""
        return round(self.wrong_clients * num_clients)


class Disconnections:
    """Who drops out of which piece of work, and for how long."""

    def __init__(self, settings: FaultSettings, seed: int) -> None:
        self._settings = settings
        self.notice_s = settings.notice_s
        self._keys = {what: key(seed, f"dropout/{what}") for what in ("before", "during", "moment", "gone", "away")}

    def moments(self, clients: IntArray, index: IntArray) -> FloatArray:
        """The part of a piece of work after which each of these clients drops out, 0 before it; infinite if none."""
        before = uniforms(self._keys["before"], clients, index) < self._settings.dropout_before
        during = uniforms(self._keys["during"], clients, index) < self._settings.dropout_during
        moment = np.where(during, uniforms(self._keys["moment"], clients, index), np.inf)
        return np.where(before, 0.0, moment)

    def away_s(self, clients: IntArray, index: IntArray) -> FloatArray:
        """How long each of these clients stays away that dropped out of this piece of work; infinite if for ever."""
        gone = uniforms(self._keys["gone"], clients, index) < self._settings.gone
        return np.where(gone, np.inf, self._settings.away_s * exponentials(self._keys["away"], clients, index))


class CorruptedUploads:
    """What is wrong with which upload: several things may be."""

    def __init__(self, settings: FaultSettings, num_clients: int, seed: int) -> None:
        self._settings, self._seed = settings, seed
        drawn = uniforms(key(seed, "wrong client"), np.arange(num_clients))
        self.is_wrong: BoolArray = np.zeros(num_clients, dtype=np.bool_)
        """Whose uploads may be wrong, (num_clients,)."""
        self.is_wrong[np.argsort(drawn, kind="stable")[: settings.num_wrong(num_clients)]] = True
        self.spoils_values = any(getattr(settings, name) > 0 for name in ("nan", "infinity", "scaled"))
        """Whether uploads may have values that are not finite."""

    def has(self, fault: str, clients: IntArray, index: IntArray) -> BoolArray:
        """Which of these uploads have a fault, called as its setting is."""
        happens: BoolArray = uniforms(key(self._seed, f"wrong/{fault}"), clients, index) < getattr(
            self._settings, fault
        )
        return self.is_wrong[clients] & happens

    def factor(self, clients: IntArray, index: IntArray) -> FloatArray:
        """How many times as far as training did each upload moves the model: 1 where nothing is wrong."""
        scaled = np.where(self.has("scaled", clients, index), self._settings.scale, 1.0)
        return np.where(self.has("flipped", clients, index), -scaled, scaled)

    def filling(self, clients: IntArray, index: IntArray) -> FloatArray:
        """What is added to one value of each upload: 0 where nothing is wrong, else infinity or NaN."""
        infinite = np.where(self.has("infinity", clients, index), np.inf, 0.0)
        return np.where(self.has("nan", clients, index), np.nan, infinite)

    def values_fit(self, client: int, index: int) -> bool:
        """Whether the values of an upload are those that training gave."""
        who, which = np.array([client]), np.array([index])
        return bool(self.factor(who, which)[0] == 1 and self.filling(who, which)[0] == 0)

    def place(self, clients: IntArray, index: IntArray, size: int) -> IntArray:
        """To which value, of so many, it is added."""
        return (uniforms(key(self._seed, "wrong/place"), clients, index) * size).astype(np.int64)

    def shapes(self, client: int, index: int, shapes: Shapes) -> Shapes:
        """The arrays an upload has where those of the model have these shapes: one may be missing, one be longer."""
        who, which = np.array([client]), np.array([index])
        names = list(shapes)
        chosen = names[int(self.place(who, which, len(names))[0])]
        wrong = dict(shapes)
        if self.has("wrong_shape", who, which)[0]:
            wrong[chosen] = (*shapes[chosen][:-1], shapes[chosen][-1] + 1) if shapes[chosen] else (1,)
        if self.has("wrong_arrays", who, which)[0]:
            del wrong[chosen]
        return wrong

    def misshapen(self, clients: IntArray, index: IntArray) -> BoolArray:
        """Which of these uploads do not have the arrays of the model."""
        return self.has("wrong_shape", clients, index) | self.has("wrong_arrays", clients, index)


class Faults(TypedDict):
    """What goes wrong in a run; None where nothing does."""

    dropouts: Disconnections | None
    wrong: CorruptedUploads | None


def faults_of(settings: FaultSettings, num_clients: int, seed: int) -> Faults:
    """What the settings have go wrong among so many clients."""
    return {
        "dropouts": Disconnections(settings, seed) if settings.drop_out else None,
        "wrong": CorruptedUploads(settings, num_clients, seed) if settings.upload_wrong else None,
    }

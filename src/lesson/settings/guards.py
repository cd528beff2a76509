"""What a server does not take: the guards of whoever merges, of simulated and of real clients alike.

Here is what needs no tensors: arrays that do not fit, updates that came before, and whom to set aside. What is looked
at when updates are merged, their values and how far they move the model, is in `lesson.learn.merge_guard`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from lesson.core.arrays import BoolArray, IntArray
from lesson.core.errors import printable
from lesson.core.validation import MAX_COUNT, Checked, Flag

WRONG_ARRAYS, WRONG_SHAPE, WRONG_TYPE = "wrong arrays", "wrong shape", "wrong type"
WRONG_METRICS, UNREADABLE = "wrong metrics", "unreadable"
NOT_FINITE, TOO_FAR, NO_WEIGHT, CAME_BEFORE = "not finite", "too far", "no weight", "came before"
OF_CONTENT = frozenset(
    {WRONG_ARRAYS, WRONG_SHAPE, WRONG_TYPE, WRONG_METRICS, UNREADABLE, NOT_FINITE, TOO_FAR, NO_WEIGHT}
)
"""Reasons that speak against a client, and not against the way its uploads take."""


class GuardSettings(Checked):
    """What the server refuses, and how it merges what it takes."""

    section: ClassVar[str] = "guards"

    finite: Flag = Field(True, description="refuse updates with values that are not finite; else they end the run")
    norm: Literal["none", "clip", "refuse"] = Field(
        "none", description="what to do with an update that moves the model more than norm_limit times the usual"
    )
    norm_limit: Annotated[float, Field(ge=1, strict=True)] = Field(
        3.0, description="how far an update may move the model, in medians of how far the last ones did"
    )
    norm_window: Annotated[int, Field(ge=1, le=MAX_COUNT, strict=True)] = Field(
        200, description="how many updates the median is of"
    )
    merge: Literal["mean", "median", "trimmed-mean"] = Field(
        "mean", description="mean, weighted as the strategy says; or of every value the median, or a trimmed mean"
    )
    trim: Annotated[float, Field(ge=0, lt=0.5, strict=True)] = Field(
        0.2, description="share of the updates that a trimmed mean leaves out at either end"
    )
    set_aside_after: Annotated[int, Field(ge=0, le=MAX_COUNT, strict=True)] = Field(
        5, description="a client whose updates were refused so often in a row takes part no more; 0 for never"
    )

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if not self.finite and (self.norm != "none" or self.merge != "mean"):
            raise ValueError("finite must be true with norm or merge: there is no median of what is no number")
        return self

    def without_effect(self) -> list[str]:
        """Settings that were changed and change nothing, a line each, with what they go with."""
        needed = {
            ("norm_limit", "norm_window"): (self.norm != "none", "norm = clip or refuse"),
            ("trim",): (self.merge == "trimmed-mean", "merge = trimmed-mean"),
        }
        return self.unused(needed, "guards.")


@dataclass(frozen=True, slots=True)
class Rejection:
    """An update that is not taken."""

    client: int
    index: int
    """Which piece of its client's work."""
    reason: str
    """In two words: the same for all of one kind."""


class InvalidUpdateError(Exception):
    """An upload cannot be merged: the kind of fault, and what exactly is wrong."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason, self.detail = reason, printable(detail)  # names and types in it are the client's own text
        super().__init__(f"{reason}: {self.detail}")


def check_names(names: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise InvalidUpdateError unless an upload has the arrays of the model, in whatever order."""
    if set(names) != set(wanted):
        (other, *_) = sorted(set(names) ^ set(wanted))
        raise InvalidUpdateError(WRONG_ARRAYS, f"'{other}' is {'new' if other in names else 'missing'}")


def check_shape(name: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Raise InvalidUpdateError unless an array of an upload has the shape of the model's."""
    if shape != wanted:
        raise InvalidUpdateError(WRONG_SHAPE, f"'{name}' has {shape}, not {wanted}")


def check_shapes(shapes: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]) -> None:
    """Raise InvalidUpdateError unless an upload has arrays of these shapes."""
    check_names(list(shapes), list(wanted))
    for name, shape in wanted.items():
        check_shape(name, shapes[name], shape)


def check_values(name: str, values: npt.NDArray[Any], kind: type[np.floating]) -> npt.NDArray[np.floating]:
    """The numbers of an array of an upload, one after the other; InvalidUpdateError if they are none, or not finite."""
    if values.dtype.kind not in "fiub":
        raise InvalidUpdateError(WRONG_TYPE, f"'{name}' has {values.dtype}")
    with np.errstate(over="ignore", invalid="ignore"):  # a client may answer in 64 bits what 32 do not hold
        numbers = values.reshape(-1).astype(kind)
    if not np.isfinite(numbers).all():
        raise InvalidUpdateError(NOT_FINITE, f"'{name}' has values that are no numbers")
    return numbers


@dataclass(eq=False)
class RejectionLedger:
    """What a server remembers of its clients: the newest update each has sent, and how it fared with their updates."""

    num_clients: int
    set_aside_after: int

    def __post_init__(self) -> None:
        self.newest: IntArray = np.full(self.num_clients, -1)
        """Index of the newest update of each client that has arrived; −1 before."""
        self.in_a_row: IntArray = np.zeros(self.num_clients, dtype=np.int64)
        """How many updates of each client were refused since one was merged."""
        self.aside: BoolArray = np.zeros(self.num_clients, dtype=np.bool_)
        """Who takes part no more."""

    def came_before(self, client: int, index: int) -> bool:
        """Whether a client's update has arrived already, or a newer one: nothing is merged twice."""
        return bool(index <= self.newest[client])

    def arrived(self, clients: IntArray | int, index: IntArray | int) -> None:
        """Note updates that have arrived, each client's once."""
        self.newest[clients] = np.maximum(self.newest[clients], index)

    def merged(self, clients: IntArray) -> None:
        """Note whose updates were merged."""
        self.in_a_row[clients] = 0

    def refused(self, refusals: Sequence[Rejection]) -> dict[int, str]:
        """Note updates that were refused; who is to be set aside for it, with the last reason."""
        against = {}
        for refusal in refusals:
            client = refusal.client
            if refusal.reason in OF_CONTENT and not self.aside[client]:
                self.in_a_row[client] += 1
                if self.set_aside_after and self.in_a_row[client] >= self.set_aside_after:
                    self.aside[client] = True
                    against[client] = refusal.reason
        return against

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Everything as arrays, for `restore`."""
        return {"newest": self.newest, "in_a_row": self.in_a_row, "aside": self.aside}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on from what `state` returned; from nothing, where an older checkpoint has none."""
        for name, array in self.state().items():
            if name in state:
                array[:] = state[name]

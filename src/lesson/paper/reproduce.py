"""The design of the paper's reproduction: the runs that its figures, tables and claims need."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tomli_w
from pydantic import Field, ValidationError

from lesson.core.errors import InputError
from lesson.core.toml import read_toml
from lesson.experiments.design import Named
from lesson.experiments.folder import StudyFolder
from lesson.experiments.run import Run
from lesson.experiments.study import Study, tell_apart
from lesson.paper.items import Item, wanted_runs
from lesson.paper.scale import FULL, QUICK, Scale
from lesson.runs.read_back import Shape, reason_of


class _Asked(Shape):
    """The table [reproduction] of study.toml."""

    quick: bool
    seeds: Annotated[int, Field(ge=1, le=1000)]
    eval_jitter: Annotated[float, Field(ge=0, le=1)] = 0.0


@dataclass(frozen=True)
class Reproduction:
    """The runs of some of the paper's figures and tables, at one scale."""

    items: Sequence[Item]
    scale: Scale
    kind: ClassVar[str] = "reproduction"
    archived: ClassVar[bool] = True

    @property
    def toml(self) -> str:
        """The table [reproduction], which records the scale."""
        jitter = {"eval_jitter": self.scale.eval_jitter} if self.scale.eval_jitter else {}
        return tomli_w.dumps({"reproduction": {"quick": self.scale.quick, "seeds": self.scale.seeds} | jitter})

    def runs(self, done: Mapping[str, Run]) -> Named:  # noqa: ARG002
        """Return the runs of all items, see `Design`."""
        return wanted_runs(self.items, self.scale)

    def later(self, done: Mapping[str, Run]) -> Named:  # noqa: ARG002
        """Return no runs: there is no tuning phase, see `Design`."""
        return {}

    def study(self, done: Mapping[str, Run], failures: Mapping[str, str]) -> Study:
        """Return all runs of the folder, also those of other items, see `Design`."""
        return tell_apart(list(done.values()), failures)

    def check(self, out: Path | str) -> None:
        """Raise InputError if a folder holds a reproduction at another scale."""
        there = read_scale(out)
        if there is not None and there.asked != self.scale.asked:
            kind = "a quick look" if there.quick else "a full reproduction"
            jitter = f" and eval_jitter = {there.eval_jitter:g}" if there.eval_jitter or self.scale.eval_jitter else ""
            raise InputError(f"{out} holds {kind} with {there.seeds} seeds{jitter}; choose another output folder")


def read_scale(folder: Path | str) -> Scale | None:
    """Return the scale of the reproduction in a folder; None if it holds none."""
    study = StudyFolder(folder)
    marker = study.read()
    if marker is None or marker.kind != Reproduction.kind:
        return None
    tables: dict[str, Any] = read_toml(study.marker, "a study creates it")
    try:
        asked = _Asked.model_validate(tables.get("reproduction"))
    except ValidationError as error:
        raise InputError(f"{study.marker} is damaged: [reproduction] {reason_of(error)}") from None
    return Scale(**(vars(QUICK if asked.quick else FULL) | {"seeds": asked.seeds, "eval_jitter": asked.eval_jitter}))

"""The runs that the paper's figures, tables and claims need, as a study."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import Field, ValidationError

from lesson.core.errors import InputError
from lesson.core.toml import read_toml
from lesson.experiments.folder import Labels, StudyFolder, StudyPlan
from lesson.paper.items import Item, wanted_runs
from lesson.paper.scale import FULL, QUICK, Scale
from lesson.runs.read_back import Shape, reason_of

KIND = "reproduction"


class _Asked(Shape):
    """The table [reproduction] of study.toml."""

    quick: bool
    seeds: Annotated[int, Field(ge=1, le=1000)]
    eval_jitter: Annotated[float, Field(ge=0, le=1)] = 0.0


def plan_reproduction(items: Iterable[Item], scale: Scale, out: Path | str) -> StudyPlan:
    """Return the runs of these items; runs of other items in the folder stay in the study."""
    before = StudyFolder(out).read()
    jitter = {"eval_jitter": scale.eval_jitter} if scale.eval_jitter else {}
    toml = tomli_w.dumps({"reproduction": {"quick": scale.quick, "seeds": scale.seeds} | jitter})
    labels: Labels = {run["name"]: [{}] for run in before.runs} if before is not None else {}
    return StudyPlan(KIND, wanted_runs(items, scale), (), labels, toml, archived=True)


def check_scale(scale: Scale, out: Path | str) -> None:
    """Raise InputError if a folder holds a reproduction at another scale."""
    before = read_scale(out)
    if before is not None and before.asked != scale.asked:
        kind = "a quick look" if before.quick else "a full reproduction"
        jitter = f" and eval_jitter = {before.eval_jitter:g}" if before.eval_jitter or scale.eval_jitter else ""
        raise InputError(f"{out} holds {kind} with {before.seeds} seeds{jitter}; choose another output folder")


def read_scale(folder: Path | str) -> Scale | None:
    """Return the scale of the reproduction in a folder; None if it holds none."""
    study = StudyFolder(folder)
    marker = study.read()
    if marker is None or marker.kind != KIND:
        return None
    tables: dict[str, Any] = read_toml(study.marker, "a study creates it")
    try:
        asked = _Asked.model_validate(tables.get("reproduction"))
    except ValidationError as error:
        raise InputError(f"{study.marker} is damaged: [reproduction] {reason_of(error)}") from None
    return Scale(**(vars(QUICK if asked.quick else FULL) | {"seeds": asked.seeds, "eval_jitter": asked.eval_jitter}))

"""The runs that the paper's figures, tables and claims need, as a study."""

from collections.abc import Iterable
from pathlib import Path

import tomli_w

from lesson.core.errors import InputError
from lesson.core.toml import read_toml
from lesson.experiments.folder import Labels, StudyFolder, StudyPlan
from lesson.paper.items import Item, wanted_runs
from lesson.paper.scale import Scale, make_scale

KIND = "reproduction"


def plan_reproduction(items: Iterable[Item], scale: Scale, out: Path | str) -> StudyPlan:
    """Return the runs of these items; runs of other items in the folder stay in the study.

    Raises InputError if the folder holds a reproduction at another scale.
    """
    there = read_scale(out)
    if there is not None and there.asked != scale.asked:
        asked = ", ".join(tomli_w.dumps(there.asked).splitlines())
        raise InputError(f"{out} holds a reproduction with {asked}; choose another output folder")
    before = StudyFolder(out).read()
    labels: Labels = {run["name"]: [{}] for run in before.runs} if before is not None else {}
    return StudyPlan(KIND, wanted_runs(items, scale), (), labels, tomli_w.dumps({KIND: scale.asked}), archived=True)


def read_scale(folder: Path | str) -> Scale | None:
    """Return the scale of the reproduction in a folder; None if it holds none."""
    study = StudyFolder(folder)
    marker = study.read()
    if marker is None or marker.kind != KIND:
        return None
    try:
        return make_scale(**read_toml(study.marker, "a study creates it")[KIND])
    except (InputError, LookupError, TypeError) as error:
        raise InputError(f"{study.marker} is damaged: [{KIND}] {error}") from None

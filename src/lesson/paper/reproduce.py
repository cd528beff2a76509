"""The output folder of a reproduction, and the runs that it still lacks."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from lesson.core.errors import InputError
from lesson.core.files import write_whole
from lesson.experiments.missing import not_held
from lesson.experiments.study import RULES, SCALE, check_for_many
from lesson.paper.items import Item, wanted_runs
from lesson.paper.scale import Scale
from lesson.runs.folder import RunFolder, read_kept
from lesson.runs.read_back import Shape
from lesson.settings.settings import Settings


class _KeptScale(Shape):
    quick: bool
    seeds: Annotated[int, Field(ge=1, le=1000)]


SCALE_KIND: TypeAdapter[Any] = TypeAdapter(_KeptScale)


def claim_folder(out: Path | str, scale: Scale) -> None:
    """Create the output folder and record its scale; raise if it holds another scale, a contest or a single run."""
    out = Path(out)
    check_for_many(out)
    if (out / RULES).exists():
        raise InputError(f"{out} holds a contest; name another folder with --out")
    wanted, path = {"quick": scale.quick, "seeds": scale.seeds}, out / SCALE
    there = read_kept(path, wanted, SCALE_KIND, "name another folder with --out")
    if there != wanted:
        kind = "a quick look" if there["quick"] else "the full set"
        raise InputError(f"{out} holds {kind} from {there['seeds']} seeds; name another folder with --out")
    RunFolder(out).make()
    write_whole(path, (json.dumps(wanted) + "\n").encode())


def missing_runs(items: Sequence[Item], out: Path | str, scale: Scale) -> dict[str, Settings]:
    """Return the settings, by name, of these items' runs that are not among the folder's results."""
    return not_held(wanted_runs(items, scale), out)

"""The folder of a study: study.toml, a subfolder per run, and for some kinds of studies an archive of all runs.

study.toml starts with the settings file that defines the runs, so `lesson sweep` accepts it. Its table [study] records
the runs with their labels, versions, the commands that executed runs, and which runs failed.
docs/reference/folders.md describes all files.
"""

import contextlib
import json
import platform
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated

import tomli_w
from pydantic import Field, ValidationError

from lesson.core.errors import InputError
from lesson.core.files import write_whole
from lesson.core.toml import read_toml
from lesson.core.version import __version__, check_format
from lesson.experiments.archive import ARCHIVE, read_archive
from lesson.experiments.run import Run
from lesson.runs.folder import RunFolder
from lesson.runs.read_back import Shape, reason_of
from lesson.settings.settings import Settings

MARKER = "study.toml"
FORMAT = 2
Labels = dict[str, list[dict[str, str]]]
"""Labels of each run by its name; a run with several sets of labels is shown several times."""


@dataclass(frozen=True)
class StudyPlan:
    """The runs of a study: their names, settings and labels.

    Attributes:
        kind: The kind of the study, as recorded in study.toml.
        runs: The settings of the runs to execute, by name, in the order of the tables.
        by: What varies besides the seed: settings as section.key, "strategy", or names in `labels`.
        labels: The labels of runs, by name. Runs of earlier calls stay in the study only if they are listed here.
        toml: The text of a settings file that defines the runs.
        archived: Whether runs are also kept in an archive. If so, a run that diverged is a result, not a failure.
    """

    kind: str
    runs: Mapping[str, Settings]
    by: tuple[str, ...]
    labels: Labels = field(default_factory=dict)
    toml: str = ""
    archived: bool = False

    @cached_property
    def listed(self) -> list[dict[str, str]]:
        """The name and labels of each run, in the order of the tables."""
        labels = self.labels | {name: [{}] for name in self.runs if name not in self.labels}
        return [{"name": name} | one for name, several in labels.items() for one in several or [{}]]


class Made(Shape):
    """A command that executed runs of a study."""

    command: str
    commit: str = ""
    """Commit of this code, with a + if it had uncommitted changes; empty if it was not in a repository."""
    runs: Annotated[int, Field(ge=0)]
    wall_s: float


class Marker(Shape):
    """The table [study] of study.toml."""

    format: int
    kind: str
    by: list[str] = Field(default_factory=list)
    runs: list[dict[str, str]] = Field(default_factory=list)
    versions: dict[str, str] = Field(default_factory=dict)
    provenance: list[Made] = Field(default_factory=list)
    failures: dict[str, str] = Field(default_factory=dict)

    def to_toml(self) -> str:
        """Return the table as TOML, with one line per run."""
        others = tomli_w.dumps({"study": self.model_dump(exclude={"runs"})}).removeprefix("[study]\n")
        fields = ([f"{key} = {json.dumps(text, ensure_ascii=False)}" for key, text in run.items()] for run in self.runs)
        runs = "".join(f"    {{ {', '.join(pairs)} }},\n" for pairs in fields)
        return f"[study]\nruns = [\n{runs}]\n{others}"


class StudyFolder:
    """The files of a study."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.marker, self.archive = self.path / MARKER, self.path / ARCHIVE

    def read(self) -> Marker | None:
        """Return the table [study] of study.toml; None if there is no such file."""
        if not self.marker.exists():
            return None
        try:
            marker = Marker.model_validate(read_toml(self.marker, "a study creates it").get("study"))
        except ValidationError as error:
            raise InputError(f"{self.marker} is damaged: [study] {reason_of(error)}") from None
        check_format(self.marker, marker.format, FORMAT)
        return marker

    def check(self, kind: str) -> None:
        """Raise InputError if the folder holds anything other than a study of this kind. Writes nothing."""
        if (self.path / "config.toml").exists():
            raise InputError(f"{self.path} holds a single run; choose another output folder")
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file, not a folder; choose another output folder")
        marker = self.read()
        if marker is None and self.path.exists() and any(self.path.glob("[!.]*")):
            raise InputError(f"{self.path} is not empty and holds no study; choose another output folder")
        if marker is not None and marker.kind != kind:
            raise InputError(f"{self.path} holds a {marker.kind}, not a {kind}; choose another output folder")

    @contextlib.contextmanager
    def owned(self, kind: str) -> Iterator[Marker]:
        """Create and lock the folder within the context, and yield its table [study].

        If an InputError leaves a new study without runs, study.toml is removed.
        """
        RunFolder(self.path).make()
        with RunFolder(self.path).owned():
            self.check(kind)  # another process may have used the folder since the first check
            before = self.read()
            try:
                yield before or Marker(format=FORMAT, kind=kind)
            except InputError:
                if before is None and not any(self.path.glob("*/")):
                    self.marker.unlink(missing_ok=True)
                raise

    def write(self, plan: StudyPlan, marker: Marker) -> Marker:
        """Write study.toml, and return its table [study]."""
        versions = {"lesson": __version__, "python": platform.python_version()}
        marker = marker.model_copy(update={"by": list(plan.by), "versions": versions, "runs": plan.listed})
        write_whole(self.marker, f"{plan.toml.rstrip()}\n\n{marker.to_toml()}".lstrip().encode())
        return marker

    def runs(self) -> dict[str, Run]:
        """Return the finished runs by name: those in the archive, then those that only have a folder."""
        done = {run.name: run for run in read_archive(self.archive)}
        for name, run in done.items():
            if RunFolder(self.path / name).summary.exists():
                done[name] = replace(run, path=self.path / name)
        for path in sorted(self.path.glob("*/summary.json")):
            if path.parent.name not in done:
                done[path.parent.name] = Run.load(path.parent)
        return done


def commit_of_code() -> str:
    """Return the commit of this code, with a + if it has uncommitted changes; empty if it is not in a repository."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=here, check=True, capture_output=True, text=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no", "..") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""

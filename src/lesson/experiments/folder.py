"""The folder of a study: study.toml, a subfolder per run, and for some designs an archive of all runs.

study.toml starts with the settings file that defines the runs, so `lesson sweep` accepts it. Its table [study] records
versions, the commands that executed runs, and which runs failed. docs/reference/folders.md describes all files.
"""

import contextlib
import platform
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import tomli_w
from pydantic import Field, ValidationError

from lesson.core.errors import InputError
from lesson.core.files import write_whole
from lesson.core.toml import read_toml
from lesson.core.version import __version__, check_format
from lesson.experiments.archive import ARCHIVE, read_archive, write_archive
from lesson.experiments.design import Design
from lesson.experiments.run import Run
from lesson.runs.folder import RunFolder
from lesson.runs.read_back import Shape, reason_of

MARKER = "study.toml"
FORMAT = 1
UNFINISHED = "it has not finished; execute the study again to resume it"


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
    versions: dict[str, str] = Field(default_factory=dict)
    provenance: list[Made] = Field(default_factory=list)
    failures: dict[str, str] = Field(default_factory=dict)


class StudyFolder:
    """The files of a study."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.marker, self.archive = self.path / MARKER, self.path / ARCHIVE

    def read(self) -> Marker | None:
        """Return the table [study] of study.toml; None if there is no such file."""
        if not self.marker.exists():
            return None
        tables = read_toml(self.marker, "a study creates it")
        try:
            marker = Marker.model_validate(tables.get("study"))
        except ValidationError as error:
            raise InputError(f"{self.marker} is damaged: [study] {reason_of(error)}") from None
        check_format(self.marker, marker.format, FORMAT)
        return marker

    def check(self, design: Design) -> None:
        """Raise InputError if the folder holds anything other than a study of this kind. Writes nothing."""
        if (self.path / "config.toml").exists():
            raise InputError(f"{self.path} holds a single run; choose another output folder")
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file, not a folder; choose another output folder")
        marker = self.read()
        if marker is None and self.path.exists() and any(self.path.glob("[!.]*")):
            raise InputError(f"{self.path} is not empty and holds no study; choose another output folder")
        if marker is not None and marker.kind != design.kind:
            raise InputError(f"{self.path} holds a {marker.kind}, not a {design.kind}; choose another output folder")

    @contextlib.contextmanager
    def owned(self, design: Design) -> Iterator[Marker]:
        """Create and lock the folder within the context, and yield what its study.toml says.

        Invalid input that leaves a new study without runs leaves no study.toml, and no empty folder.
        """
        RunFolder(self.path).make()
        with RunFolder(self.path).owned():
            self.check(design)  # another process may have started something here since the first check
            before = self.read()
            try:
                yield before or Marker(format=FORMAT, kind=design.kind)
            except InputError:
                if before is None and not any(self.path.glob("*/")):
                    self.marker.unlink(missing_ok=True)
                raise

    def write(self, design: Design, marker: Marker) -> None:
        """Write study.toml."""
        versions = {"lesson": __version__, "python": platform.python_version()}
        table = marker.model_dump() | {"versions": versions}
        write_whole(self.marker, f"{design.toml.rstrip()}\n\n{tomli_w.dumps({'study': table})}".encode())

    def runs(self) -> dict[str, Run]:
        """Return the runs that are done, by name: those in the archive, then finished runs that only have a folder."""
        done = {run.name: run for run in read_archive(self.archive)}
        for name, run in done.items():
            if RunFolder(self.path / name).summary.exists():
                done[name] = replace(run, path=self.path / name)
        for path in self.finished():
            if path.name not in done:
                done[path.name] = Run.load(path)
        return done

    def finished(self) -> list[Path]:
        """Return the folders of runs that have finished."""
        return [path.parent for path in sorted(self.path.glob("*/summary.json"))]

    def unfinished(self) -> list[Path]:
        """Return the folders of runs that have started but not finished."""
        begun = [path.parent for path in sorted(self.path.glob("*/config.toml"))]
        return [path for path in begun if not RunFolder(path).summary.exists()]

    def keep(self, runs: Mapping[str, Run]) -> None:
        """Write the archive."""
        write_archive(self.archive, runs.values())


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

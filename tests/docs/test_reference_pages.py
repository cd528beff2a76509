"""The reference pages are complete: they name every field of real files, and every name of the public API."""

import gzip
import json
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import lesson
import lesson.flower
import lesson.testing
import render_docs
from helpers.small_tasks import tiny_task
from lesson.cli import main
from lesson.experiments import archive, folder
from lesson.experiments.archive import write_archive
from lesson.flight import recording
from lesson.flight.recording import Event, Header, read_recording
from lesson.paper.verdicts import Finding, Part, above
from lesson.runs import checkpoints
from lesson.runs.read_back import ClientsFile, Columns, Line, Promoted, Summary
from lesson.settings import loading

PAGES = Path(__file__).parent.parent.parent / "docs" / "reference"
FOLDERS = (PAGES / "folders.md").read_text()


def section(heading: str) -> str:
    """Return the part of the page under a heading."""
    return re.split(r"^#+ ", FOLDERS.split(f" {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def assert_named(fields: Iterable[str], heading: str) -> None:
    named = set(re.findall(r"`([^`]+)`", section(heading)))
    assert [field for field in fields if field not in named] == [], f"fields that '{heading}' does not name"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of one run whose times vary and whose updates are sometimes rejected, with every optional field."""
    out = tmp_path_factory.mktemp("study") / "out"
    settings = lesson.Settings(
        num_clients=6,
        split="iid",
        fading="rayleigh",
        batch_size=5,
        nan=0.5,
        exclude_after_rejections=1,
        rounds=3,
        client_scores_every_s=1.0,
        device="cpu",
    )
    lesson.compare(["fedavg"], settings=settings, num_seeds=1, num_processes=1, out=out, task=tiny_task())
    return out


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_fields_of_a_run(study: Path) -> None:
    run = study / "fedavg-seed0"
    metrics = {field for line in lines(run) for field in line}
    assert {"accuracy", "merged_expected_s", "rejections", "excluded", "client_loss", "lost"} <= metrics
    assert_named([*metrics, *Line.model_fields], "metrics.jsonl")
    assert_named([*json.loads((run / "summary.json").read_text()), *Summary.model_fields], "summary.json")
    clients = json.loads((run / "clients.json").read_text())
    assert_named([*clients, *clients["clients"]], "clients.json")
    assert_named([*ClientsFile.model_fields, *Columns.model_fields, *Promoted.model_fields], "clients.json")
    config = tomllib.loads((run / "config.toml").read_text())
    assert_named(["format", "preset", *config["versions"]], "config.toml")
    assert_named([path.name for path in run.iterdir()], "The folder of a run")


def test_fields_of_a_study(study: Path) -> None:
    marker = tomllib.loads((study / "study.toml").read_text())["study"]
    assert_named([*marker, *folder.Marker.model_fields, *folder.Made.model_fields, *marker["versions"]], "study.toml")
    loaded = lesson.load(study)
    assert isinstance(loaded, lesson.Study)
    names = [name for name in loaded.table() if not re.search(r"_(min|max|ci95|seeds)$|time_to", name)]
    assert_named(names, "Tables")


def test_fields_of_an_archive(study: Path, tmp_path: Path) -> None:
    write_archive(tmp_path / archive.ARCHIVE, [lesson.Run.load(study / "fedavg-seed0")])
    (line,) = gzip.decompress((tmp_path / archive.ARCHIVE).read_bytes()).decode().splitlines()
    values = json.loads(line)
    assert_named([*values, *values["curve"], *values["clients"]], "runs.jsonl.gz")


def test_fields_of_claims() -> None:
    finding = Finding("a", "b", "c", ["fig5"], [Part("d", np.ones(3), above())]).to_dict()
    assert_named([*finding, *finding["parts"][0]], "claims.json")


def field_paths(value: Any, path: str = "") -> Iterable[str]:
    """The paths of all fields in a JSON value, such as `rounds[].end_s`."""
    if isinstance(value, dict):
        for name, inner in value.items():
            inner_path = f"{path}.{name}" if path else name
            yield inner_path
            yield from field_paths(inner, inner_path)
    elif isinstance(value, list):
        for inner in value:
            yield from field_paths(inner, f"{path}[]")


def test_fields_of_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """The deadline is too short for all clients, so that one is promoted."""
    assert main(["plan", "--json", "--clients", "5", "--deadline", "1", "--set", "ensure_first_tier=true"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["promoted"] is not None
    described = (PAGES / "cli.md").read_text().split("## Output of lesson plan --json\n")[1]
    assert re.findall(r"^\| `([^`]+)` \|", described, re.MULTILINE) == list(dict.fromkeys(field_paths(plan)))


def test_format_versions_are_current() -> None:
    rows = [line for line in section("Versions").splitlines() if "format =" in line]
    current = [loading.FORMAT, int(checkpoints.FORMAT), folder.FORMAT, archive.FORMAT]
    assert [int(re.search(r"format = (\d+)", row)[1]) for row in rows] == current  # type: ignore[index]


def test_fields_of_a_recording(tmp_path: Path) -> None:
    """The page names every field and event with its default, and its example is a recording."""
    page = (PAGES / "recordings.md").read_text()
    first_line, events, fields = (
        part.partition("\n\n")[0] for part in re.split(r"^\| (?:field of [^|]+|event) \|", page, flags=re.MULTILINE)[1:]
    )
    assert re.findall(r"^\| `(\w+)` \|", first_line, re.MULTILINE) == list(Header.model_fields)
    assert re.findall(r"^\| `(\w+)` \|", fields, re.MULTILINE) == list(Event.model_fields)
    kinds = re.findall(r"`(\w+)`", " ".join(line.split("|")[1] for line in events.splitlines()[2:]))
    assert sorted(kinds) == sorted(get_args(Event.model_fields["event"].annotation))
    assert f"in the first line, currently {recording.FORMAT}." in page
    (example,) = re.findall(r"^```json\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "flight.jsonl").write_text(example)
    found = read_recording(tmp_path / "flight.jsonl")
    assert found.names == ("key-2c70e12b", "pi-3")
    assert found.jobs.outcome.tolist() == [recording.ARRIVED, recording.FAILED]
    assert found.rounds[0].merged == (1,)


def test_the_api_page_describes_exactly_the_public_names() -> None:
    expected = {name for name in lesson.__all__ if name != "__version__"}
    for module in (lesson.testing, lesson.flower):
        expected |= {f"{module.__name__.removeprefix('lesson.')}.{name}" for name in module.__all__}
    described = re.findall(r"^<!-- generated: api (\S+) -->$", (PAGES / "api.md").read_text(), re.MULTILINE)
    assert sorted(described) == sorted(expected)


@pytest.mark.parametrize("path", sorted(PAGES.parent.rglob("*.md")), ids=lambda path: path.stem)
def test_generated_parts_are_current(path: Path) -> None:
    page = path.read_text()
    assert render_docs.render(page) == page, "run tools/render_docs.py"

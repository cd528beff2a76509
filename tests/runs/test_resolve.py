"""What a run derives from its task, its input files and the machine, and what it keeps as given."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.any_tasks import feature_task
from helpers.runs import PARTS, settings
from lesson import InputError, Settings
from lesson.learn.task import Task
from lesson.runs.execute import execute
from lesson.runs.folder import RunFolder
from lesson.runs.resolve import resolve, with_upload_bits
from lesson.settings.loading import load_settings

FIVE: dict[str, Any] = {"clients": np.array_split(np.arange(160), 5)}


def derived(given: Settings, task: Task | None = None) -> dict[str, Any]:
    """Return the derived values by name."""
    found = resolve(given.with_changes(device="cpu", precision="float32"), task).settings
    tables = found.to_sections()
    return {key.partition(".")[2]: tables[key.partition(".")[0]][key.partition(".")[2]] for key in found.derived}


def test_task_with_clients_determines_split_and_number_of_clients_unless_they_are_given() -> None:
    task = feature_task(**FIVE)
    assert derived(Settings(), task) == {"num_clients": 5, "split": "natural"}
    assert derived(Settings(preset="printed", num_clients=3), task) == {"split": "natural"}
    assert derived(Settings(split="iid"), task) == derived(Settings(), feature_task()) == {}
    with pytest.raises(InputError, match="num_clients must be at most 5"):
        resolve(Settings(num_clients=6), task).build()


def test_file_of_latencies_determines_the_number_of_clients(tmp_path: Path) -> None:
    file = tmp_path / "lab.csv"
    file.write_text("client,latency_s\n" + "".join(f"{number},3\n" for number in range(7)))
    assert derived(Settings(latencies=str(file))) == {"num_clients": 7}
    with pytest.raises(InputError, match="lists 7 clients"):
        resolve(Settings(latencies=str(file)), feature_task(**FIVE))


def test_actual_size_of_an_upload_is_that_of_the_model() -> None:
    assert derived(Settings(model_bits="actual"), feature_task()) == {"model_bits": 32.0 * 227}
    assert with_upload_bits(Settings(model_bits="actual", dataset="cifar10")).upload.bits == 32 * 1_144_650
    with pytest.raises(InputError, match="model_bits"):
        _ = Settings(model_bits="actual").upload.bits


def test_notes_on_clients_and_the_size_of_uploads() -> None:
    """LeNet has 61,706 parameters, 1,974.6 kbit: 20 times the preset's 100 kbit. 227 parameters have 7.3 kbit."""
    (size,) = resolve(Settings()).notes
    assert "an upload is charged as 100 kbit" in size
    assert "1,974.6 kbit" in size
    assert resolve(Settings(model_bits=2e6)).notes == resolve(Settings(model_bits="actual")).notes == []
    notes = resolve(Settings(), feature_task(**FIVE)).notes
    for note, text in zip(notes, ("num_clients = 5", "split = natural", "7.3 kbit"), strict=True):
        assert text in note
    for download, does in ((False, "counted"), (True, "charged")):
        assert does in resolve(Settings(trace="trace.csv", download=download)).notes[-1]
    assert "an uncompressed upload is charged" in resolve(Settings(compression="qsgd")).notes[-1]


def test_sizes_of_uploads_cannot_be_given() -> None:
    with pytest.raises(InputError, match="level_bits follows from the model"):
        resolve(Settings(upload={"compression": "qsgd", "level_bits": {"8": 3.0}}))


def test_settings_remember_which_values_were_given(tmp_path: Path) -> None:
    """Through changes, pickling, and config.toml; derived values are derived again for another task."""
    given = Settings(preset="phones", beta=0.1, device="cpu")
    assert given.given_sections()["data"] == {"beta": 0.1}
    resolved = resolve(given, feature_task(**FIVE)).settings
    assert set(resolved.derived) == {"fleet.num_clients", "data.split", "upload.model_bits", "run.precision"}
    RunFolder(tmp_path).begin(resolved, {})
    for one in (resolved, pickle.loads(pickle.dumps(resolved)), load_settings(tmp_path / "config.toml")):
        assert one.to_sections() == resolved.to_sections()
        assert not one.is_given("data.split")
        again = resolve(one.with_changes(beta=0.2), feature_task()).settings
        assert (again.fleet.num_clients, again.data.split, again.data.beta) == (50, "dirichlet-per-class", 0.2)
    chosen = load_settings(tmp_path / "config.toml", ["num_clients=4"])
    assert resolve(chosen, feature_task(**FIVE)).settings.fleet.num_clients == 4


def test_derived_values_do_not_hide_other_settings() -> None:
    task = feature_task(**FIVE)
    begun, other = resolve(Settings(device="cpu"), task).settings, Settings(num_clients=3, split="iid")
    assert Settings().differences(begun) == []
    assert len(other.differences(begun)) == 2
    assert len(Settings().differences(resolve(other, task).settings)) == 2


def test_resumed_run_keeps_its_evaluation_interval(tmp_path: Path) -> None:
    """The run in the folder is evaluated every 7 s, which "auto" does not change."""
    RunFolder(tmp_path).begin(resolve(settings(eval_every_s=7.0), PARTS["task"]).settings, {})
    resumed = resolve(settings(eval_every_s="auto"), PARTS["task"], begun=RunFolder(tmp_path).begun).settings
    assert resumed.run.eval_every_s == 7.0


def test_unknown_strategy_is_reported_before_any_note(tmp_path: Path) -> None:
    told: list[str] = []
    with pytest.raises(InputError, match="did you mean 'lesson'"):
        execute(Settings(shadowing_km=0.1).with_strategy("leson", {}), tmp_path / "run", tell=told.append)
    assert told == []

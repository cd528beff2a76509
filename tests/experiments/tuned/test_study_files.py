"""Every entry of the settings files under experiments/ is executed for two rounds, so that none can rot."""

from pathlib import Path

import pytest

from helpers.small_tasks import tiny_task
from lesson.core.errors import DivergedError
from lesson.experiments.tuned.design import TunedComparison
from lesson.runs.execute import execute

pytestmark = pytest.mark.usefixtures("few_test_images")
FILES = sorted((Path(__file__).parents[3] / "experiments").glob("*/*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_entries_of_experiments_run_two_rounds(path: Path, tmp_path: Path) -> None:
    """On tiny data and a tiny model, at the highest level of each group."""
    design = TunedComparison.load(path)
    rules, task = design.rules, tiny_task(600)
    highest_levels = {(entry.group, entry.line or entry.name): entry for entry in design.entries}
    for number, entry in enumerate(highest_levels.values()):
        settings = entry.settings(entry.points[-1], rules.betas[0], rules.seeds[0], rules)
        # Other splits need more data, and other trainers may start processes.
        short = settings.with_changes(rounds=2, device="cpu", split="iid", trainer="reference")
        try:
            summary = execute(short, tmp_path / str(number), task=task, num_threads=1)
        except DivergedError:  # as the experiment shows: nothing keeps NaN out
            assert settings.faults.nan > 0
            assert not settings.guards.finite
        else:
            assert summary["rounds"] == 2, entry.name

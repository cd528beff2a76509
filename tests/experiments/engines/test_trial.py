"""How a run of many ends."""

from pathlib import Path

from lesson.experiments.engines.trial import FORESEEN, execute_trial
from lesson.settings.settings import Settings


def test_a_run_that_diverges_says_so_and_is_foreseen(tmp_path: Path) -> None:
    settings = Settings(
        training={"learning_rate": 1e30, "lr_cap": float("inf")},
        strategy={"name": "fedavg"},
        run={"rounds": 5, "device": "cpu", "eval_every_s": 1e9},
    )
    line = execute_trial(tmp_path / "run", settings, progress=None, data_dir=None, num_threads=1)
    assert line["kind"] == "DivergedError"
    assert line["kind"] in FORESEEN
    assert line["error"].startswith("the model is no longer finite after round 2")

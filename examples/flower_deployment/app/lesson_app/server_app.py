"""The server: runs LessonStrategy as the run config says, and evaluates the model after each round."""

from typing import Any

from flwr.app import ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from lesson.flower import LessonStrategy, RunFolder, evaluate_on_server, initial_arrays
from lesson.settings.sections import UploadSettings
from lesson.strategies import make_strategy
from lesson_app.task import settings_of

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for the rounds that the run config asks for."""
    config: Any = context.run_config
    settings, folder = settings_of(config), None
    if config["out"]:
        names, trackers = config["readmit"].split(), config["trackers"].split()
        folder = RunFolder(config["out"], resume=config["resume"], readmit=names, trackers=trackers)
    strategy = LessonStrategy(
        config["deadline"],
        make_strategy(config["strategy"], config["deadline"]),
        clock=config["clock"],
        upload=UploadSettings(compression=config["compression"]),
        min_available_nodes=config["min-nodes"],
        evaluate_every=config["eval-every"],
        keep_best=config["keep-best"],
        sends_index=True,  # TaskClient requires it
        seed=config["seed"],
        folder=folder,
    )
    strategy.start(
        grid,
        initial_arrays(settings),
        config["rounds"],
        train_config=ConfigRecord({"lr": config["learning-rate"], "local-steps": config["local-steps"]}),
        evaluate_fn=evaluate_on_server(settings),
    )

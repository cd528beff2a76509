"""The server: starts the strategy and evaluates the model after each round."""

from collections.abc import Callable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from lesson.flower import LessonStrategy
from lesson_quickstart.task import Net, load_test_data, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for the rounds that the run config asks for."""
    config: Any = context.run_config
    strategy = LessonStrategy(config["deadline"], clock=config["clock"])
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
        evaluate_fn=make_evaluate(),
    )
    print(result)


def make_evaluate() -> Callable[[int, ArrayRecord], MetricRecord]:
    """Return a function that evaluates a model on the server's test data."""
    net, loader = Net(), load_test_data()

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:  # noqa: ARG001
        net.load_state_dict(arrays.to_torch_state_dict())
        loss, accuracy = test(net, loader)
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    return evaluate

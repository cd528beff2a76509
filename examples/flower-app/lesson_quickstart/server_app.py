"""The server: starts the strategy and evaluates the model after each round."""

from collections.abc import Callable

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from lesson.flower import LessonStrategy  # 1. was: from flwr.serverapp.strategy import FedAvg
from lesson_quickstart.task import Net, load_test_data, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for the rounds that the run config asks for."""
    config = context.run_config
    strategy = LessonStrategy(deadline_s=float(config["deadline"]))  # 2. was: FedAvg()
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": float(config["learning-rate"])}),
        num_rounds=int(config["num-server-rounds"]),
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

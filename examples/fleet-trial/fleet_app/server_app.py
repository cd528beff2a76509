"""The server: Flower's FedAvg, with an evaluation on the server after each round."""

from collections.abc import Callable
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fleet_app.task import accuracy, initial_model, load_data

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for the rounds that the run config asks for."""
    config = context.run_config
    nodes = int(config["min-nodes"])
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(initial_model()),
        train_config=ConfigRecord({"lr": float(config["learning-rate"])}),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=make_evaluate(Path(str(config["data"]))),
    )
    print(f"accuracy: {result.evaluate_metrics_serverapp}")


def make_evaluate(folder: Path) -> Callable[[int, ArrayRecord], MetricRecord]:
    """Return a function that evaluates a model on the server's test images."""
    images, labels = load_data(folder, "t10k")

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:  # noqa: ARG001
        return MetricRecord({"accuracy": accuracy(arrays.to_numpy_ndarrays(), images, labels)})

    return evaluate

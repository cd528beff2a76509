"""The client: trains and evaluates the model on its own data."""

from typing import Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from lesson_quickstart.task import Loader, Net, load_data, num_examples
from lesson_quickstart.task import test as test_net
from lesson_quickstart.task import train as train_net

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model and reply with it."""
    config: Any = message.content["config"]
    net, (loader, _) = model_of(message), data_of(context)
    loss = train_net(net, loader, int(context.run_config["local-steps"]), config["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": num_examples(loader)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the received model and reply with its loss and accuracy."""
    net, (_, loader) = model_of(message), data_of(context)
    loss, accuracy = test_net(net, loader)
    metrics = MetricRecord({"eval_loss": loss, "eval_accuracy": accuracy, "num-examples": num_examples(loader)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def model_of(message: Message) -> Net:
    """Return the model that the server has sent."""
    net = Net()
    net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    return net


def data_of(context: Context) -> tuple[Loader, Loader]:
    """Return the training and test data of this client."""
    node = context.node_config
    return load_data(int(node["partition-id"]), int(node["num-partitions"]), int(context.run_config["batch-size"]))

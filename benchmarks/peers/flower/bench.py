"""Flower: a ServerApp with FedAvg and a ClientApp on the simulation runtime; Ray actors share the cores and the GPU."""

import os
from typing import Any

os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")

import torch
from common import Job, Stopwatch, client_tensors, measure, train, use_device
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from nets import start
from torch import nn


def make_client(job: Job) -> ClientApp:
    """Return the ClientApp, which trains the model that it receives."""
    app = ClientApp()

    @app.train()
    def local_work(message: Message, context: Context) -> Message:
        torch.set_num_threads(job.threads)
        device = use_device()
        net = job.workload.net().to(device)
        net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        train(net, job.workload, *client_tensors(job, int(context.node_config["partition-id"]), device))
        content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": 1})})
        return Message(content=content, reply_to=message)

    return app


def bench(job: Job, watch: Stopwatch) -> nn.Module:
    """Run all rounds."""
    workload, net = job.workload, start(job.workload.net())
    server = ServerApp()

    class TimedFedAvg(FedAvg):
        """FedAvg that records the end of each round."""

        def aggregate_train(self, *args: Any, **kwargs: Any) -> Any:
            """Average the models and record the end of the round."""
            result = super().aggregate_train(*args, **kwargs)
            watch.lap()
            return result

    @server.main()
    def rounds(grid: Grid, _: Context) -> None:
        strategy = TimedFedAvg(
            fraction_train=workload.cohort / workload.num_clients,
            fraction_evaluate=0.0,
            min_train_nodes=workload.cohort,
            min_available_nodes=workload.num_clients,
        )
        watch.lap()
        result = strategy.start(grid, ArrayRecord(net.state_dict()), num_rounds=workload.warm_up + workload.rounds)
        net.load_state_dict(result.arrays.to_torch_state_dict())

    num_gpus = 1 if use_device() == "cuda" else 0
    run_simulation(
        server_app=server,
        client_app=make_client(job),
        num_supernodes=workload.num_clients,
        backend_config={
            "init_args": {"num_cpus": job.processes * job.threads, "num_gpus": num_gpus},
            "client_resources": {"num_cpus": job.threads, "num_gpus": num_gpus / job.processes},
        },
    )
    return net


if __name__ == "__main__":
    measure(bench)

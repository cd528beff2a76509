"""A plain PyTorch loop: one client after another, models averaged every round; on a GPU if there is one."""

import torch
from common import Job, Stopwatch, client_tensors, measure, train, use_device
from nets import start
from torch import Tensor, nn


def bench(job: Job, watch: Stopwatch) -> Tensor:
    """Run all rounds."""
    workload, device = job.workload, use_device()
    net = start(workload.net()).to(device)
    model = nn.utils.parameters_to_vector(net.parameters()).detach()
    clients = [client_tensors(job, client, device) for client in range(workload.num_clients)]
    watch.lap()
    for _ in range(workload.warm_up + workload.rounds):
        total = torch.zeros_like(model)
        for client in torch.randperm(workload.num_clients)[: workload.cohort].tolist():
            trained = model.clone()
            nn.utils.vector_to_parameters(trained, net.parameters())  # the parameters are now views of `trained`
            train(net, workload, *clients[client])
            total += trained
        model = total / workload.cohort
        watch.lap()
    return model


if __name__ == "__main__":
    measure(bench)

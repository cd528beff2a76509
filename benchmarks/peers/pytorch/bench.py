"""A plain PyTorch loop: one client after another, models averaged every round; on a GPU if there is one."""

import torch
from common import Job, Stopwatch, client_tensors, measure, train
from nets import start
from torch import Tensor, nn


def bench(job: Job, watch: Stopwatch) -> Tensor:
    """Run all rounds."""
    workload = job.workload
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = start(workload.net()).to(device)
    model = nn.utils.parameters_to_vector(net.parameters()).detach()
    clients = [[part.to(device) for part in client_tensors(job, client)] for client in range(workload.num_clients)]
    watch.lap()
    for _ in range(workload.warm_up + workload.rounds):
        total = torch.zeros_like(model)
        for client in torch.randperm(workload.num_clients)[: workload.cohort].tolist():
            trained = model.clone()
            nn.utils.vector_to_parameters(trained, net.parameters())  # the parameters are now views of `trained`
            train(net, workload, *clients[client])
            total += trained
        model = total / workload.cohort
        if device == "cuda":
            torch.cuda.synchronize()
        watch.lap()
    return model.cpu()


if __name__ == "__main__":
    measure(bench)

"""pfl-research: federated averaging on its simulated backend; several worker processes under torchrun."""

import os
import sys
from typing import Any

import numpy as np
import shared_gpu  # noqa: F401 - before pfl, which chooses its device on import
import torch
from common import LEARNING_RATE, Job, Stopwatch, client_tensors, measure, read_job, use_device
from nets import start
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional


class Lap(TrainingProcessCallback[Any]):
    """Records the end of each round."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch

    def on_train_begin(self, **_: Any) -> Metrics:
        self._watch.lap()
        return Metrics()

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        self._watch.lap()
        return False, Metrics()


def learnable(net: Any) -> nn.Module:
    """Add the two methods that pfl requires to a network. Nothing is evaluated."""

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        net.train()
        return functional.cross_entropy(net(images), labels)

    def metrics(*_: Tensor) -> dict[str, Weighted]:
        return {}

    net.loss, net.metrics = loss, metrics
    learns: nn.Module = net
    return learns


def bench(job: Job, watch: Stopwatch) -> nn.Module:
    """Run all rounds."""
    workload, device = job.workload, use_device()
    np.random.seed(0)  # noqa: NPY002 - pfl draws users from numpy's global generator
    net = learnable(start(workload.net()))
    everybody = workload.cohort == workload.num_clients
    sampler = get_user_sampler("minimize_reuse" if everybody else "random", range(workload.num_clients))
    clients = {client: client_tensors(job, client, device) for client in range(workload.num_clients)}
    dataset = FederatedDataset.from_slices(clients, sampler)
    central = torch.optim.SGD(net.parameters(), lr=1.0)
    rounds = workload.warm_up + workload.rounds
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds,
            train_cohort_size=workload.cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=dataset, val_data=dataset, postprocessors=[WeightByUser()]),
        model=PyTorchModel(model=net, local_optimizer_create=torch.optim.SGD, central_optimizer=central),
        model_train_params=NNTrainHyperParams(
            local_batch_size=workload.batch_size,
            local_num_epochs=1 if workload.whole_epoch else None,
            local_num_steps=None if workload.whole_epoch else workload.steps,
            local_learning_rate=LEARNING_RATE,
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[Lap(watch)],
        send_metrics_to_platform=False,
    )
    if int(os.environ.get("RANK", "0")):
        sys.exit()  # only one worker reports
    return net


if __name__ == "__main__":
    processes = read_job().processes
    if processes > 1 and "RANK" not in os.environ:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
        os.execv(sys.executable, torchrun + sys.argv)
    measure(bench)

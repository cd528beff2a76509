"""This project, as a user would call it: FedAvg in simulated time, default trainer, on a GPU if there is one."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
from common import LEARNING_RATE, Job, Stopwatch, measure, use_device
from nets import PflCnn
from torch import Tensor

from lesson import FedAvg, Lesson, Settings, draw_population, make_loop
from lesson.fleet.fleet import fleet_of
from lesson.learn.backend import Backend
from lesson.learn.cpu import CpuBackend
from lesson.learn.cuda.backend import CudaBackend
from lesson.learn.data import load_samples
from lesson.learn.executor import Executor
from lesson.learn.lane import Lane
from lesson.learn.optimizers import ServerOptimizer
from lesson.learn.pipeline import Pipeline
from lesson.learn.process import configure_process
from lesson.learn.simulated_clients import SimulatedClients
from lesson.learn.tasks import BUILT_IN, image_task
from lesson.learn.workload import make_workload


def bench(job: Job, watch: Stopwatch) -> Tensor:
    """Run all rounds."""
    workload = job.workload
    local: dict[str, Any] = {"local_epochs": 1} if workload.whole_epoch else {"local_steps": workload.steps}
    settings = Settings(
        num_clients=workload.num_clients,
        split="iid",
        batch_size=workload.batch_size,
        training={"learning_rate": LEARNING_RATE},
        **local,
    )
    whole, held = load_samples(workload.dataset), workload.num_clients * workload.samples_per_client
    samples = replace(whole, train_inputs=whole.train_inputs[:held], train_targets=whole.train_targets[:held])
    network = PflCnn if workload.net is PflCnn else BUILT_IN[workload.dataset].network
    device = use_device()
    work = make_workload(settings.with_changes(device=device), image_task(workload.dataset, samples, network))
    assert np.all(work.holdings.num_samples == workload.samples_per_client)
    fleet = fleet_of(settings, draw_population(settings), work.holdings.num_samples)
    configure_process()
    backend: Backend = CudaBackend(work, "tf32") if device == "cuda" else CpuBackend(work, job.threads)
    lane = Lane(work.initial_vector(), settings.training, ServerOptimizer(settings.server), settings.guards)
    everybody = workload.cohort == workload.num_clients
    strategy = FedAvg() if everybody else Lesson(math.inf, participation=workload.cohort)
    pipeline = Pipeline(make_loop(strategy, fleet), lane, Executor(SimulatedClients(work, backend), None))
    watch.lap()
    for _ in range(workload.warm_up + workload.rounds):
        record = pipeline.step()
        watch.lap()
        assert record is not None
        assert len(record.merged) == workload.cohort
    pipeline.close()
    backend.close()
    return lane.model.vector


if __name__ == "__main__":
    measure(bench)

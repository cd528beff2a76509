"""FedLab: its standalone pipeline with the serial SGD trainer and the synchronous server, all in one process."""

import logging
from collections.abc import Iterator

import shim  # noqa: F401 - before fedlab, which imports torchvision
from common import LEARNING_RATE, Job, Stopwatch, client_tensors, measure, minibatches
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.contrib.dataset.basic_dataset import FedDataset
from fedlab.core.standalone import StandalonePipeline
from nets import start
from torch import Tensor, nn


class Clients(FedDataset):
    """Clients whose minibatches come directly from memory, which is faster than a DataLoader."""

    def __init__(self, job: Job) -> None:
        self._workload = job.workload
        self._clients = [client_tensors(job, client) for client in range(job.workload.num_clients)]

    def get_dataloader(self, id: int, batch_size: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Return a client's minibatches of one round."""
        assert batch_size == self._workload.batch_size
        return minibatches(self._workload, *self._clients[id])


class TimedPipeline(StandalonePipeline):
    """A pipeline that records the end of a round instead of evaluating."""

    def __init__(self, handler: SyncServerHandler, trainer: SGDSerialClientTrainer, watch: Stopwatch) -> None:
        super().__init__(handler, trainer)
        self._watch = watch

    def evaluate(self) -> None:
        """Record the end of a round."""
        self._watch.lap()


def bench(job: Job, watch: Stopwatch) -> nn.Module:
    """Run all rounds."""
    workload, quiet = job.workload, logging.getLogger("quiet")
    trainer = SGDSerialClientTrainer(start(workload.net()), workload.num_clients, logger=quiet)
    trainer.setup_dataset(Clients(job))
    trainer.setup_optim(epochs=1, batch_size=workload.batch_size, lr=LEARNING_RATE)
    handler = SyncServerHandler(
        start(workload.net()),
        global_round=workload.warm_up + workload.rounds,
        sample_ratio=workload.cohort / workload.num_clients,
        logger=quiet,
    )
    pipeline = TimedPipeline(handler, trainer, watch)
    watch.lap()
    pipeline.main()
    model: nn.Module = handler.model
    return model


if __name__ == "__main__":
    measure(bench)

"""FLGo: its FedAvg on a generated task, without evaluation and console output."""

import contextlib
import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import shim  # noqa: F401 - before flgo, which imports torchvision
from common import LEARNING_RATE, Job, Stopwatch, measure
from flgo.algorithm.fedbase import BasicClient, BasicServer
from flgo.benchmark.partition import IIDPartitioner
from flgo.benchmark.toolkits.cv.classification import FromDatasetPipe
from flgo.experiment.logger.simple_logger import SimpleLogger
from flgo.utils.fflow import gen_benchmark_from_file, gen_task_by_, init
from torch import Tensor, nn

CONFIG = Path(__file__).with_name("config.py").resolve()


def rows_of(self: FromDatasetPipe.TaskDataset, rows: list[int]) -> list[tuple[Tensor, Tensor]]:
    """Return several samples of a client at once, as current torch requires of a subset."""
    samples: list[tuple[Tensor, Tensor]] = self.dataset.__getitems__([self.indices[row] for row in rows])
    return samples


FromDatasetPipe.TaskDataset.__getitems__ = rows_of


class TimedServer(BasicServer):
    """FedAvg that records the end of each round."""

    watch: Stopwatch

    def iterate(self) -> Any:
        """Run one round."""
        updated = super().iterate()
        self.watch.lap()
        return updated


class TimedFedAvg:
    """An algorithm in the form that FLGo expects."""

    Server, Client = TimedServer, BasicClient


def bench(job: Job, watch: Stopwatch) -> nn.Module:
    """Run all rounds."""
    workload = job.workload
    TimedServer.watch = watch
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        sys.path.append(folder)
        benchmark = importlib.import_module(gen_benchmark_from_file("workload", str(CONFIG)))
        del benchmark.visualize  # drawing the partition takes minutes
        gen_task_by_(benchmark, IIDPartitioner(workload.num_clients), "task")
        option = {
            "num_rounds": workload.warm_up + workload.rounds,
            "sample": "full" if workload.cohort == workload.num_clients else "uniform",
            "proportion": workload.cohort / workload.num_clients,
            "aggregate": "uniform",
            "num_steps": workload.steps,
            "batch_size": workload.batch_size,
            "learning_rate": LEARNING_RATE,
            "train_holdout": 0.0,
            "eval_interval": -1,
            "no_log_console": True,
            "no_tqdm": True,
            "num_parallels": job.processes,
            "parallel_type": "p",
            "torch_num_threads": job.threads,
        }
        del sys.argv[1:]  # FLGo would read them, too
        runner = init("task", TimedFedAvg, option, Logger=SimpleLogger)
        watch.lap()
        runner.run()
    model: nn.Module = runner.model
    return model


if __name__ == "__main__":
    measure(bench)

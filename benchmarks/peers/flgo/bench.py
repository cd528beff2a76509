"""FLGo: its FedAvg on a generated task, evaluation and console off."""

import importlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import shim  # noqa: F401 - before flgo, which imports torchvision
from common import LEARNING_RATE, Job, Stopwatch, measure
from torch import nn

import flgo
from flgo.algorithm.fedbase import BasicClient, BasicServer
from flgo.benchmark.partition import IIDPartitioner
from flgo.experiment.logger.simple_logger import SimpleLogger

CONFIG = Path(__file__).with_name("config.py").resolve()


def bench(job: Job, watch: Stopwatch) -> nn.Module:
    """Run all rounds."""
    workload = job.workload

    class TimedServer(BasicServer):
        """FedAvg that notes when a round ends."""

        def iterate(self) -> Any:
            """One round."""
            updated = super().iterate()
            watch.lap()
            return updated

    class Timed:
        """What FLGo takes for an algorithm."""

        Server, Client = TimedServer, BasicClient

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.path.append(folder)
        benchmark = importlib.import_module(flgo.gen_benchmark_from_file("workload", str(CONFIG)))
        flgo.gen_task_by_(benchmark, IIDPartitioner(workload.num_clients), "task")
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
        runner = flgo.init("task", Timed, option, Logger=SimpleLogger)
        watch.lap()
        runner.run()
        os.chdir("/")
    return runner.model


if __name__ == "__main__":
    measure(bench)

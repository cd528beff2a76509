"""One process per GPU, which trains the runs of many others."""

import os
import signal
import tempfile
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, Listener
from pathlib import Path

import numpy as np

from lesson.core.errors import RunStoppedError
from lesson.core.interrupts import STOP_SIGNALS
from lesson.experiments.engines.trial import restored
from lesson.learn.build import TrainingRun
from lesson.learn.device import num_gpus, use_gpu
from lesson.learn.lanes.backend import LaneBackend, NoLaneError
from lesson.learn.lanes.server import Server
from lesson.learn.partition import Partition
from lesson.learn.process import configure_process, main_hidden
from lesson.learn.tasks import task_of
from lesson.learn.workload import Workload
from lesson.runs.resolve import Resolved
from lesson.settings.settings import Settings

END_S = 10.0


class GpuProcesses:
    """The processes that train on GPUs, or one on the CPU, which is slow but needs no GPU."""

    def __init__(self, device: str, num_lanes: int, content: bytes, data_dir: Path | str | None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="lesson-")
        self._pipes, self._processes = list[Connection](), []
        context = get_context("spawn")
        for gpu in range(num_gpus() if device == "cuda" else 1):
            ours, theirs = context.Pipe()
            address = str(Path(self._folder.name) / str(gpu))
            process = context.Process(target=_serve, args=(theirs, address, device, gpu, num_lanes, content, data_dir))
            with main_hidden():
                process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        try:
            self.addresses: list[str] = [pipe.recv() for pipe in self._pipes]
            """Where runs connect to each process."""
        except BaseException as error:
            self.close()
            if isinstance(error, EOFError):
                raise RunStoppedError("a process that trains on the GPU has failed to start, see its output") from None
            raise

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(END_S)
            process.kill()
            process.join()
        self._folder.cleanup()


def build_in_lane(address: str, resolved: Resolved, _: int | None) -> TrainingRun:
    """Return a run that is trained by another process; raise NoLaneError if it cannot be."""
    settings, needs = resolved.settings, resolved.strategy.needs
    if settings.guards.limits_norms or settings.upload.compression != "none":
        raise NoLaneError("the server needs the model of each client")
    if "update_deviation" in needs:
        raise NoLaneError("the strategy compares the models of clients")
    if settings.run.trainer == "reference":
        raise NoLaneError("the reference trainer trains one client at a time")
    return resolved.build(connect=partial(LaneBackend, address))


def _serve(
    parent: Connection,
    address: str,
    device: str,
    gpu: int,
    num_lanes: int,
    content: bytes,
    data_dir: Path | str | None,
) -> None:
    """Serve runs until the process that started this one closes its pipe or ends."""
    os.setsid()  # Ctrl-C reaches the parent process; runs that write a checkpoint still need this one
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    configure_process()
    if device == "cuda":
        use_gpu(gpu)

    def make(settings: Settings) -> Workload:
        if settings.run.device != device:
            raise NoLaneError(f"its device is {settings.run.device}, and that of other runs is {device}")
        _, task = restored(content)
        nobody = Partition(np.arange(2), np.array([0, 2]))
        return Workload(task or task_of(settings, data_dir), nobody, settings.training, settings.run.seed, device)

    with Listener(address, "AF_UNIX", backlog=256) as listener:
        parent.send(address)
        Server(make, num_lanes).serve(listener, parent)
    os._exit(0)  # at once: nothing has to be saved, and freeing GPU memory takes seconds

"""What trains and evaluates: the CPU's cores or a GPU."""

from collections.abc import Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from lesson.errors import InputError
from lesson.learn.evaluate import PendingScore
from lesson.learn.task import Job, Task
from lesson.settings import RunLimits, Settings

TrainerName = Literal["reference", "fused", "batched"]


class Trainer(Protocol):
    """A way to train cohorts."""

    def cohorts(self, jobs: Sequence[Job]) -> list[Tensor]:
        """The weighted sum of the models of each cohort."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


class Backend(Protocol):
    """Trainers and evaluation on one device."""

    def trainer(self, name: TrainerName) -> Trainer:
        """A new trainer."""
        ...

    def begin_score(self, vector: Tensor) -> PendingScore:
        """How good the model with these parameters is on the test images."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


def on_device(settings: Settings) -> Settings:
    """The settings with the device named: a GPU for "auto" where there is one and the trainer can use it."""
    limits = settings.run
    if limits.device == "cuda" and limits.trainer == "reference":
        raise InputError("trainer must be auto, fused or batched on a GPU, got 'reference'; take device cpu")
    if limits.device == "cuda" and not torch.cuda.is_available():
        raise InputError("device must be auto or cpu here, got 'cuda': torch sees no GPU")
    gpu = limits.device == "cuda" or (
        limits.device == "auto" and limits.trainer != "reference" and torch.cuda.is_available()
    )
    here = {"device": "cuda"} if gpu else {"device": "cpu", "precision": "float32"}
    return settings.model_copy(update={"run": limits.model_copy(update=here)})


def make_backend(task: Task, limits: RunLimits, num_threads: int | None = None) -> Backend:
    """The backend of the device the task's data is on."""
    if task.device == "cpu":
        from lesson.learn.cpu import CpuBackend

        return CpuBackend(task, num_threads)
    from lesson.learn.cuda.backend import CudaBackend

    return CudaBackend(task, limits.precision)

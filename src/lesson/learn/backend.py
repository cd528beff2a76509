"""What trains and evaluates: the CPU's cores or a GPU."""

import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import Tensor

from lesson.core.errors import InputError
from lesson.learn.evaluate import ClientScores, PendingScore
from lesson.learn.partition import Holdings
from lesson.learn.task import Job
from lesson.settings.settings import Settings

TrainerName = Literal["reference", "fused", "batched"]


class Trainer(Protocol):
    """A way to train cohorts."""

    def cohorts(self, jobs: Sequence[Job]) -> list[Tensor]:
        """The weighted sum of the models of each cohort, good until cohorts are trained again."""
        ...

    def models(self, jobs: Sequence[Job]) -> list[Tensor]:
        """The model of each row of each cohort's work, (len(work), num_parameters); a new tensor."""
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

    def client_scores(self, vector: Tensor, holdings: Holdings) -> ClientScores:
        """How good the model with these parameters is on the training samples that each client holds."""
        ...

    def judge_test(self, vector: Tensor) -> Tensor:
        """What the model with these parameters makes of each test image; see `judge`."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


def on_device(settings: Settings) -> Settings:
    """The settings with device and precision named: a GPU for "auto" where there is one the trainer can use."""
    limits = settings.run
    if limits.device == "cuda" and limits.trainer == "reference":
        raise InputError("[run] trainer must be auto, fused or batched on a GPU, got 'reference'; take device cpu")
    if limits.device == "cuda" and not torch.cuda.is_available():
        raise InputError("[run] device must be auto or cpu here, got 'cuda': torch sees no GPU")
    gpu = limits.device == "cuda" or (
        limits.device == "auto" and limits.trainer != "reference" and torch.cuda.is_available()
    )
    usual = "tf32" if gpu else "float32"
    precision = usual if limits.precision == "auto" else limits.precision
    if not gpu and precision != "float32":
        raise InputError(f"[run] precision must be auto or float32 on a CPU, got '{precision}'")
    here = {"device": "cuda" if gpu else "cpu", "precision": precision}
    return settings.model_copy(update={"run": limits.model_copy(update=here)})


def cpu_capability() -> str:
    """The CPU instruction set that torch uses here, such as AVX2; with another, results differ by rounding."""
    return torch.backends.cpu.get_cpu_capability()


def hardware(device: str) -> str:
    """The name of what a device is here."""
    if device == "cuda":
        return str(torch.cuda.get_device_name())
    try:
        names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        names = []
    return f"{os.cpu_count()} cores of {names[0] if names else platform.processor() or 'an unknown kind'}"

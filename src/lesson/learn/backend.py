"""Interfaces of trainers, sources of updates and backends, and the rule for the length of chunks."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol

from torch import Tensor

from lesson.core.arrays import IntArray
from lesson.learn.cohort import Cohort
from lesson.learn.memory import Memory
from lesson.learn.scores import Score
from lesson.learn.workload import Workload

TrainerName = Literal["reference", "fused", "batched"]
MAX_CHUNK_STEPS = 2048
"""Maximum work of a chunk, see `ChunkRule.local_steps`."""


class ChunkRule(NamedTuple):
    """How far the clock may run ahead of training."""

    local_steps: int = 1
    """Maximum work of a chunk, in local steps of clients; with 1, a chunk is one round long."""
    ends_anywhere: bool = True
    """Whether a chunk may end after any round, because results do not depend on where it ends. On a GPU, they do; each
    chunk is then computed while the clock builds the next one."""
    first_steps: int | None = None
    """Work of the first chunk; that of later ones follows from the measured time. None: `local_steps`."""


class Trainer(Protocol):
    """Trains cohorts, or provides models that were trained elsewhere."""

    def sums(self, cohorts: Sequence[Cohort]) -> list[Tensor]:
        """Return the weighted sum of the trained models of each cohort, as new tensors."""
        ...

    def models(self, cohorts: Sequence[Cohort]) -> list[Tensor]:
        """Return the trained models of each cohort as new tensors, shape (num_rows, num_parameters)."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


class UpdateSource(Protocol):
    """Provides the models of updates: from simulated clients, which are trained here, or from remote ones."""

    @property
    def notes(self) -> Sequence[str]:
        """Notes for the summary of a run, such as why a slower trainer was used."""
        ...

    @property
    def trainers(self) -> Sequence[str]:
        """Names of the trainers that have been used."""
        ...

    def trainer_for(self, local_steps: IntArray) -> Trainer:
        """Return the trainer of updates with these numbers of local steps."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


class Backend(Protocol):
    """Training and evaluation on one device."""

    @property
    def rule(self) -> ChunkRule:
        """How far the clock may run ahead of training."""
        ...

    @property
    def memory(self) -> Memory:
        """Where vectors of parameters are."""
        ...

    def trainer(self, name: TrainerName) -> Trainer:
        """Return a new trainer; raise InputError if it cannot train this task."""
        ...

    def begin_score(self, vector: Tensor) -> Callable[[], Score]:
        """Start to evaluate the model with these exchanged values on the test data.

        Returns a function that waits for the score.
        """
        ...

    def sample_scores(self, vector: Tensor, samples: Tensor | None) -> Tensor:
        """Return the `sample_scores` of training samples, or of the test data, for a model, shape (num, 2)."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


def why_not(workload: Workload, name: TrainerName, one_step: bool) -> str:
    """Return why a trainer cannot be used for updates of one local step, or of several; empty if it can."""
    if name == "reference" or (name == "batched" and workload.device == "cpu"):
        return ""
    if name == "fused" and not one_step:
        return "clients take several local steps"
    if name == "fused" and not workload.training.is_plain:
        return "local training is not a step of plain SGD"
    return workload.template.traits.needs_own_pass

"""The reference trainer on a GPU, for models that cannot be recorded as a CUDA graph: one client after another."""

from collections.abc import Sequence

from torch import Tensor

from lesson.learn.cohort import Cohort
from lesson.learn.cuda.graphs import Precision, arithmetic
from lesson.learn.reference import ReferenceTrainer
from lesson.learn.workload import Workload


class CudaReferenceTrainer:
    """Trains one client after another, in the precision of the settings."""

    def __init__(self, workload: Workload, precision: Precision) -> None:
        self._trainer, self._precision = ReferenceTrainer(workload), precision

    def sums(self, cohorts: Sequence[Cohort]) -> list[Tensor]:
        """Return the weighted sum of the trained models of each cohort."""
        with arithmetic(self._precision):
            return self._trainer.sums(cohorts)

    def models(self, cohorts: Sequence[Cohort]) -> list[Tensor]:
        """Return the trained models of each cohort, shape (num_rows, num_parameters)."""
        with arithmetic(self._precision):
            return self._trainer.models(cohorts)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

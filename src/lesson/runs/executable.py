"""What the execution of a run in a folder needs from the run."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from lesson.clock.loop import RoundLoop
from lesson.clock.records import RoundRecord
from lesson.core.arrays import FloatArray, IntArray
from lesson.fleet.fleet import Fleet
from lesson.learn.metric import Metric
from lesson.learn.model_server import ModelServer
from lesson.learn.scores import ClientScores, Pending, PendingScore, Score


class ExecutableRun(Protocol):
    """A run that trains models: `learn.build.TrainingRun`, or the run of an app on Flower, which has no task."""

    evaluates_itself: ClassVar[bool]
    """Whether `after_round` evaluates the model, so that `begin_score` and `begin_client_scores` are never called."""

    @property
    def loop(self) -> RoundLoop: ...

    @property
    def server(self) -> ModelServer: ...

    @property
    def on_wall_clock(self) -> bool:
        """Whether its times are measured on real clients, rather than simulated."""
        ...

    @property
    def fleet(self) -> Fleet:
        """The clients that have taken part, with their first estimated times or, on the wall clock, measured ones."""
        ...

    @property
    def metric(self) -> Metric:
        """The metric by which models are compared."""
        ...

    @property
    def num_classes(self) -> int | None:
        """Number of classes; None for a task without classes."""
        ...

    @property
    def is_cross_entropy(self) -> bool:
        """Whether the loss is the cross-entropy of the targets."""
        ...

    @property
    def after_round(self) -> Callable[[RoundRecord], Mapping[str, Any]]:
        """Called at the end of each round; returns additional fields for its line of metrics."""
        ...

    def begin_score(self) -> PendingScore:
        """Evaluate the newest model without waiting for the result."""
        ...

    def begin_client_scores(self) -> Pending[ClientScores]:
        """Evaluate the newest model on the samples of each client without waiting for the result."""
        ...

    def final_score(self) -> Score:
        """Return the score of the newest model."""
        ...

    def class_accuracy(self) -> tuple[FloatArray, tuple[str, ...]]:
        """Return the accuracy per class and the names of the classes, if there are any; only with `num_classes`."""
        ...

    def own_accuracy(self, clients: IntArray, by_class: FloatArray) -> FloatArray:
        """Return the accuracy on test data with each client's own class distribution; only with `num_classes`."""
        ...

    def parameters(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the values of the newest model by name."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...

"""How good a model is on the test images."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from lesson.learn.models import Replica
from lesson.learn.task import Task, scaled
from lesson.learn.threads import Threads

CHUNK_SAMPLES = 500


@dataclass(frozen=True)
class Score:
    """Share of test images classified rightly, and the mean cross-entropy."""

    accuracy: float
    loss: float


class PendingScore(Protocol):
    """A score that may still be worked out."""

    def ready(self) -> bool:
        """Whether nobody would have to wait for it."""
        ...

    def result(self) -> Score:
        """The score."""
        ...


@dataclass(frozen=True)
class KnownScore:
    """A score that is there."""

    score: Score

    def ready(self) -> bool:
        return True

    def result(self) -> Score:
        return self.score


def score(task: Task, threads: Threads, vector: Tensor) -> Score:
    """The score of the model with these parameters."""
    total = len(task.test_labels)
    chunks = [
        threads.submit(_score_chunk, vector, task.test_images[begin:end], task.test_labels[begin:end])
        for begin, end in ((begin, begin + CHUNK_SAMPLES) for begin in range(0, total, CHUNK_SAMPLES))
    ]
    right, loss = 0, 0.0
    for chunk in chunks:
        chunk_right, chunk_loss = chunk.result()
        right, loss = right + chunk_right, loss + chunk_loss
    return Score(right / total, loss / total)


@torch.no_grad()
def _score_chunk(replica: Replica, images: Tensor, labels: Tensor) -> tuple[int, float]:
    logits = replica.logits(scaled(images))
    return int((logits.argmax(1) == labels).sum()), float(functional.cross_entropy(logits, labels, reduction="sum"))

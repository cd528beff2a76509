"""How good a model is on the test images, and on the samples each client holds."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lesson.core.arrays import FloatArray
from lesson.learn.models import Replica
from lesson.learn.partition import Holdings
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


@dataclass(frozen=True, eq=False)
class ClientScores:
    """How good a model is on each client's own samples, (num_clients,); NaN for a client that has none."""

    accuracy: FloatArray
    """Share classified rightly."""
    loss: FloatArray
    """Eq. (2): mean cross-entropy f_i."""
    global_loss: float
    """Eq. (1): their mean, weighted by samples."""


def score(task: Task, threads: Threads, vector: Tensor) -> Score:
    """The score of the model with these parameters."""
    total = len(task.test_labels)
    right, loss = 0, 0.0
    for chunk_right, chunk_loss in _in_threads(threads, _score_chunk, vector, task.test_images, task.test_labels):
        right, loss = right + chunk_right, loss + chunk_loss
    return Score(right / total, loss / total)


def judge_all(threads: Threads, vector: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    """What the model with these parameters makes of any number of images, (num_images, 2); see `judge`."""
    return torch.cat(_in_threads(threads, judge, vector, images, labels))


@torch.no_grad()
def judge(replica: Replica, images: Tensor, labels: Tensor) -> Tensor:
    """Whether each image is classified rightly, 1 or 0, and its cross-entropy, (num_samples, 2)."""
    logits = replica.logits(scaled(images)).float()
    losses = functional.cross_entropy(logits, labels, reduction="none")
    return torch.stack([(logits.argmax(1) == labels).to(losses.dtype), losses], dim=1)


def by_client(holdings: Holdings, judged_by: Callable[[Tensor], Tensor]) -> ClientScores:
    """The scores of every client, from what a function makes of samples; one that clients share is judged once."""
    clients = np.flatnonzero(holdings.num_samples).tolist()
    held = np.unique(np.concatenate([holdings[client] for client in clients]))
    judged = judged_by(torch.from_numpy(held)).cpu().numpy().astype(np.float64)
    means = np.full((len(holdings.num_samples), 2), np.nan)
    for client in clients:
        means[client] = judged[np.searchsorted(held, holdings[client])].mean(axis=0)
    accuracy, loss = means.T
    return ClientScores(accuracy, loss, float(np.nansum(loss * holdings.num_samples) / holdings.num_samples.sum()))


def chunks(images: Tensor, labels: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Images and their labels, so many at a time."""
    return zip(images.split(size), labels.split(size), strict=True)


def _in_threads(
    threads: Threads, work: Callable[..., Any], vector: Tensor, images: Tensor, labels: Tensor
) -> list[Any]:
    """What work(replica, images, labels) makes of one chunk after the other."""
    parts = [threads.submit(work, vector, *chunk) for chunk in chunks(images, labels, CHUNK_SAMPLES)]
    return [part.result() for part in parts]


@torch.no_grad()
def _score_chunk(replica: Replica, images: Tensor, labels: Tensor) -> tuple[int, float]:
    logits = replica.logits(scaled(images))
    return int((logits.argmax(1) == labels).sum()), float(functional.cross_entropy(logits, labels, reduction="sum"))

"""Evaluation of a model on the test images and on the samples of each client."""

from collections.abc import Callable, Iterator, Mapping
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
    """Metrics and mean loss on the test data."""

    values: Mapping[str, float]
    """Finite values by the name of the metric; the metric by which models are compared comes first."""
    loss: float


class PendingScore(Protocol):
    """A score that may not have been computed yet."""

    def ready(self) -> bool:
        """Return whether `result` returns without waiting."""
        ...

    def result(self) -> Score:
        """Return the score; wait until it has been computed."""
        ...


@dataclass(frozen=True)
class KnownScore:
    """A score that has been computed."""

    score: Score

    def ready(self) -> bool:
        return True

    def result(self) -> Score:
        return self.score


@dataclass(frozen=True, eq=False)
class ClientScores:
    """Accuracy and loss on each client's samples, shape (num_clients,); NaN for a client without samples."""

    accuracy: FloatArray
    """Share of the samples that are classified correctly."""
    loss: FloatArray
    """Mean cross-entropy f_i, Eq. (2)."""
    global_loss: float
    """Mean of the losses, weighted by number of samples, Eq. (1)."""


def score(task: Task, threads: Threads, vector: Tensor) -> Score:
    """Evaluate the model with these parameters on the test images."""
    total = len(task.test_labels)
    right, loss = 0, 0.0
    for chunk_right, chunk_loss in _in_threads(threads, _score_chunk, vector, task.test_images, task.test_labels):
        right, loss = right + chunk_right, loss + chunk_loss
    return Score({"accuracy": right / total}, loss / total)


def judge_all(threads: Threads, vector: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    """Apply `judge` to any number of images; return shape (num_images, 2)."""
    return torch.cat(_in_threads(threads, judge, vector, images, labels))


@torch.no_grad()
def judge(replica: Replica, images: Tensor, labels: Tensor) -> Tensor:
    """Return whether each image is classified correctly, 1 or 0, and its cross-entropy, shape (num_images, 2)."""
    logits = replica.logits(scaled(images)).float()
    losses = functional.cross_entropy(logits, labels, reduction="none")
    return torch.stack([(logits.argmax(1) == labels).to(losses.dtype), losses], dim=1)


def by_client(holdings: Holdings, judged_by: Callable[[Tensor], Tensor]) -> ClientScores:
    """Return the scores of all clients. `judged_by` maps indices of training samples to the values of `judge`.

    A sample that several clients hold is judged once.
    """
    clients = np.flatnonzero(holdings.num_samples).tolist()
    held = np.unique(np.concatenate([holdings[client] for client in clients]))
    judged = judged_by(torch.from_numpy(held)).cpu().numpy().astype(np.float64)
    means = np.full((len(holdings.num_samples), 2), np.nan)
    for client in clients:
        means[client] = judged[np.searchsorted(held, holdings[client])].mean(axis=0)
    accuracy, loss = means.T
    return ClientScores(accuracy, loss, float(np.nansum(loss * holdings.num_samples) / holdings.num_samples.sum()))


def chunks(images: Tensor, labels: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Return an iterator over images and labels in chunks of `size`; the last chunk may be smaller."""
    return zip(images.split(size), labels.split(size), strict=True)


def _in_threads(
    threads: Threads, work: Callable[..., Any], vector: Tensor, images: Tensor, labels: Tensor
) -> list[Any]:
    """Return work(replica, images, labels) of each chunk, in order."""
    parts = [threads.submit(work, vector, *chunk) for chunk in chunks(images, labels, CHUNK_SAMPLES)]
    return [part.result() for part in parts]


@torch.no_grad()
def _score_chunk(replica: Replica, images: Tensor, labels: Tensor) -> tuple[int, float]:
    logits = replica.logits(scaled(images))
    return int((logits.argmax(1) == labels).sum()), float(functional.cross_entropy(logits, labels, reduction="sum"))

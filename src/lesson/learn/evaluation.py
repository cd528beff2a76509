"""Evaluation of the global model on the test data and on the clients' samples."""

import contextlib
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.errors import InputError, RunStoppedError
from lesson.learn.backend import Backend
from lesson.learn.cohort import Cohort
from lesson.learn.divergence import check_finite
from lesson.learn.lane import GlobalModel
from lesson.learn.metric import Metric
from lesson.learn.minibatch import NO_SAMPLE
from lesson.learn.partition import Holdings
from lesson.learn.scores import ClientScores, Score
from lesson.learn.task import ACCURACY
from lesson.learn.trees import num_samples
from lesson.learn.workload import Workload
from lesson.strategies.base import Updates

Signal = Callable[[GlobalModel], Any]
"""A signal that is an evaluation of the newest model."""


class Evaluator:
    """Evaluates versions of the global model; DivergedError is raised if a loss is not finite."""

    def __init__(self, workload: Workload, backend: Backend) -> None:
        self.workload, self._backend = workload, backend
        task, name = workload.task, workload.task.metric
        if task.metrics is not None:  # an error in them should not wait for the first evaluation
            name = next(iter(backend.begin_score(workload.initial_vector())().values))
        self.metric = Metric(name, task.higher_is_better, tuple(task.target_scores or ()))
        """The metric by which models are compared; `Score.values` has it."""
        self.num_classes = task.num_classes
        """Number of classes; None for a task without classes."""
        self.class_names = tuple(task.class_names) if self.num_classes is not None else ()
        """Names of the classes; empty if they have none."""
        self.is_cross_entropy = workload.loss.is_default
        """Whether the loss is the cross-entropy of the targets."""

    @property
    def test_steps(self) -> float:
        """Cost of an evaluation on the test data in local steps; their backward pass costs twice the forward pass."""
        return num_samples(self.workload.task.test[1]) / self.workload.batch_size / 3

    @property
    def client_steps(self) -> float:
        """Cost of an evaluation on the samples of all clients, in local steps."""
        return int(self.workload.holdings.num_samples.sum()) / self.workload.batch_size / 3

    def score(self, model: GlobalModel) -> Score:
        """Evaluate a model on the test data."""
        return self.begin_score(model)()

    def begin_score(self, model: GlobalModel) -> Callable[[], Score]:
        """Start to evaluate a model on the test data; return a function that waits for the score."""
        with _stopping_the_run():
            wait = self._backend.begin_score(model.vector)

        def score() -> Score:
            with _stopping_the_run():
                result = wait()
            for name, value in {"loss": result.loss, **result.values}.items():
                check_finite(name, math.isfinite(value), model.newest_cohort)
            return result

        return score

    def client_scores(self, model: GlobalModel, holdings: Holdings | None = None) -> ClientScores:
        """Evaluate a model on the samples of each client, by default those that it trains on; wait for the result."""
        held = self.workload.holdings if holdings is None else holdings
        scores = client_scores(self._backend, model.vector, held)
        losses = scores.loss[held.num_samples > 0]
        check_finite("loss", bool(np.isfinite(losses).all()), model.newest_cohort)
        return scores

    def class_accuracy(self, model: GlobalModel) -> FloatArray:
        """Return a model's test accuracy per class, shape (num_classes,); NaN for a class without test samples."""
        num_classes, work = self.num_classes or 0, self.workload
        scores = self._backend.sample_scores(model.vector, None)
        right, labels = scores[:, 0].double().cpu().numpy(), work.task.test[1].numpy()
        totals = np.bincount(labels, minlength=num_classes)
        return np.asarray(np.bincount(labels, right, num_classes) / np.where(totals, totals, np.nan))

    def own_accuracy(self, clients: IntArray, by_class: FloatArray) -> FloatArray:
        """Return the accuracy on test data with each client's own class distribution; NaN for a client without data."""
        shares = self.class_shares(clients, len(by_class))
        accuracy = np.where(shares > 0, shares * by_class, 0.0).sum(axis=1)  # classes that a client lacks are ignored
        accuracy[shares.sum(axis=1) == 0] = np.nan
        return np.asarray(accuracy)

    def class_shares(self, clients: IntArray, num_classes: int) -> FloatArray:
        """Return the share of each class in the samples of these clients, shape (len(clients), num_classes)."""
        labels, holdings = self.workload.task.train[1].numpy(), self.workload.holdings
        counts = np.array([np.bincount(labels[holdings[client]], minlength=num_classes) for client in clients.tolist()])
        return np.asarray(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))

    def signals(self) -> dict[str, Signal]:
        """Return the signals of `ServerView.signals` that are evaluations.

        "client_accuracy" is among them only if clients hold samples out.
        """
        signals: dict[str, Signal] = {"update_loss": lambda model: partial(self.update_loss, model)}
        held_out = self.workload.held_out
        if held_out is None:
            return signals
        if self.workload.task.metric != ACCURACY:
            raise InputError("strategy must not need the clients' accuracy: the task has no accuracy")
        return signals | {"client_accuracy": lambda model: self.client_scores(model, held_out).accuracy}

    def update_loss(self, model: GlobalModel, updates: Updates) -> FloatArray:
        """Return the root mean square of a model's losses on the first minibatch of each update.

        The shape is (len(updates),); NaN for an update without samples.
        """
        if not len(updates):
            return np.empty(0)
        zeros, ones = np.zeros(len(updates), dtype=np.int64), np.ones(len(updates))
        client, index, steps, level = updates.client, updates.index, updates.local_steps, updates.level
        most = zeros + self.workload.batch_size
        cohort = Cohort(model.vector, client, index, ones, steps, ones, zeros, most, level)
        (samples,) = self.workload.minibatches(cohort, 1)
        rows, columns = (samples != NO_SAMPLE).nonzero(as_tuple=True)
        losses = self._backend.sample_scores(model.vector, samples[rows, columns])[:, 1]
        squares = losses.double().cpu().numpy() ** 2
        check_finite("loss", bool(np.isfinite(squares).all()), model.newest_cohort)
        where = rows.cpu().numpy()
        counts = np.bincount(where, minlength=len(updates))
        return np.sqrt(np.bincount(where, squares, len(updates)) / np.where(counts, counts, np.nan))

    def close(self) -> None:
        """Close the backend."""
        self._backend.close()


@contextlib.contextmanager
def _stopping_the_run() -> Iterator[None]:
    """Raise RunStoppedError if metrics fail: they worked for the initial model, so the input is valid."""
    try:
        yield
    except InputError as error:
        raise RunStoppedError(str(error)) from error.__cause__


def client_scores(backend: Backend, vector: Tensor, holdings: Holdings) -> ClientScores:
    """Evaluate the model with these exchanged values on the training samples of each client, Eqs. (1) and (2).

    A sample that several clients hold is evaluated once.
    """
    clients = np.flatnonzero(holdings.num_samples).tolist()
    held = np.unique(np.concatenate([holdings[client] for client in clients]))
    scores = backend.sample_scores(vector, torch.from_numpy(held)).cpu().numpy().astype(np.float64)
    means = np.full((len(holdings.num_samples), 2), np.nan)
    for client in clients:
        means[client] = scores[np.searchsorted(held, holdings[client])].mean(axis=0)
    accuracy, loss = means.T
    return ClientScores(accuracy, loss, float(np.nansum(loss * holdings.num_samples) / holdings.num_samples.sum()))

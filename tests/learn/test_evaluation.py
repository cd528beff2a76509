"""Scores on the test images and on the clients' own samples, against plain torch."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.fleets import make_fleet
from helpers.lanes import make_models
from helpers.small_tasks import TinyNet, image_workload, tiny_data, tiny_logits, tiny_task, tiny_workload
from lesson import FedAvg, Settings, make_loop
from lesson.core.errors import DivergedError
from lesson.learn.cpu import PART_SAMPLES, CpuBackend
from lesson.learn.data import Samples
from lesson.learn.divergence import NewestCohort
from lesson.learn.evaluation import Evaluator, client_scores
from lesson.learn.lane import GlobalModel
from lesson.learn.partition import Partition
from lesson.learn.remote import evaluate_on_client
from lesson.learn.scores import ClientScores
from lesson.learn.workload import Workload
from lesson.settings.sections import TrainingSettings

DATA = tiny_data(3000)
"""2000 training samples: four parts."""


def check_by_hand(scores: ClientScores, workload: Workload, data: Samples, vector: Tensor) -> None:
    """Accuracy as a count over a count, loss within rounding, client by client."""
    holdings = workload.holdings
    assert len(scores.accuracy) == len(scores.loss) == len(holdings.num_samples)
    for client, size in enumerate(holdings.num_samples.tolist()):
        logits = tiny_logits(vector, data.train_inputs[holdings[client]])
        truth = torch.from_numpy(data.train_targets[holdings[client]])
        loss = torch.nn.functional.cross_entropy(logits.double(), truth).item()
        assert scores.accuracy[client] == int((logits.argmax(1) == truth).sum()) / size
        assert scores.loss[client] == pytest.approx(loss, rel=1e-5)


@pytest.fixture(scope="module")
def workload() -> Workload:
    settings = Settings(split="dirichlet-per-class", beta=0.5, batch_size=5)
    return image_workload(settings, DATA, 4, seed=0, factory=TinyNet)


@pytest.fixture(scope="module")
def model(workload: Workload) -> GlobalModel:
    """After a few rounds."""
    pipeline = make_models(workload).pipeline(make_loop(FedAvg(), make_fleet([1.0, 2.0, 3.0, 4.0])))
    for _ in range(8):
        pipeline.step()
    return pipeline.lane.model


@pytest.fixture(scope="module")
def evaluator(workload: Workload) -> Iterator[Evaluator]:
    made = Evaluator(workload, CpuBackend(workload, 3))
    yield made
    made.close()


def test_score_by_hand(evaluator: Evaluator, model: GlobalModel) -> None:
    logits, truth = tiny_logits(model.vector, DATA.test_inputs), torch.from_numpy(DATA.test_targets)
    score, is_right = evaluator.score(model), logits.argmax(1) == truth
    assert score.values["accuracy"] == int(is_right.sum()) / 1000
    assert score.loss == pytest.approx(torch.nn.functional.cross_entropy(logits, truth).item(), rel=1e-5)
    by_class = [float(is_right[truth == label].double().mean()) for label in range(3)]
    assert evaluator.class_accuracy(model) == pytest.approx(by_class)
    assert evaluator.test_steps == 1000 / 5 / 3


def test_client_scores_by_hand(evaluator: Evaluator, model: GlobalModel, workload: Workload) -> None:
    """Eq. (1): Σ |D_i| / |D| f_i is the mean loss over all samples, each of which somebody holds."""
    scores, sizes = evaluator.client_scores(model), workload.holdings.num_samples
    check_by_hand(scores, workload, DATA, model.vector)
    assert len(DATA.train_targets) > PART_SAMPLES
    logits, truth = tiny_logits(model.vector, DATA.train_inputs), torch.from_numpy(DATA.train_targets)
    total = torch.nn.functional.cross_entropy(logits.double(), truth).item()
    assert scores.loss @ sizes / sizes.sum() == pytest.approx(total, rel=1e-6)
    assert scores.global_loss == pytest.approx(total, rel=1e-6)
    assert scores.loss.mean() != pytest.approx(total, rel=1e-6), "the weights do not matter here"
    count, remote = evaluate_on_client(workload, model.vector.numpy(), 2)
    assert (count, remote["accuracy"]) == (sizes[2], scores.accuracy[2])
    backend = CpuBackend(workload, 1)
    alone = client_scores(backend, model.vector, workload.holdings)
    backend.close()
    assert np.array_equal(alone.loss, scores.loss), "it depends on the number of threads"


def test_model_of_zeros_predicts_the_first_class(evaluator: Evaluator, model: GlobalModel) -> None:
    """All logits are 0: every loss is ln 3."""
    zeros = replace(model, vector=torch.zeros_like(model.vector))
    scores, shares = evaluator.client_scores(zeros), evaluator.class_shares(np.arange(4), 3)
    labels = DATA.train_targets[evaluator.workload.holdings[2]]
    assert shares[2].tolist() == [np.mean(labels == label) for label in range(3)]
    assert scores.loss == pytest.approx(np.full(4, math.log(3)), rel=1e-6)
    assert scores.accuracy == pytest.approx(shares[:, 0])
    assert evaluator.class_accuracy(zeros).tolist() == [1.0, 0.0, 0.0]


def test_clients_of_a_pool_share_samples() -> None:
    workload = tiny_workload(30, split="dirichlet-pool", samples_per_client=(3, 40), beta=0.5)
    evaluator, vector = Evaluator(workload, CpuBackend(workload)), workload.initial_vector()
    scores = evaluator.client_scores(GlobalModel(vector, NewestCohort(None, 0, "")))
    check_by_hand(scores, workload, tiny_data(), vector)
    evaluator.close()


def test_client_without_samples_has_no_score() -> None:
    holdings = Partition.of([np.array([3, 1]), np.empty(0, dtype=np.int64), np.array([7])])
    workload = Workload(tiny_task(), holdings, TrainingSettings(batch_size=5), 0)
    evaluator = Evaluator(workload, CpuBackend(workload))
    scores = evaluator.client_scores(GlobalModel(workload.initial_vector(), NewestCohort(None, 0, "")))
    evaluator.close()
    assert np.isnan(scores.accuracy).tolist() == np.isnan(scores.loss).tolist() == [False, True, False]
    assert np.isfinite(scores.global_loss)


def test_loss_that_is_no_longer_finite_stops_the_run(evaluator: Evaluator, model: GlobalModel) -> None:
    """The parameters are finite, what they give is not: 1e30 of the convolution times 1e30 of the layer after it."""
    for scored in (evaluator.client_scores, evaluator.score):
        with pytest.raises(DivergedError, match="loss is no longer finite after round 8, with 4 clients"):
            scored(replace(model, vector=1e30 * model.vector))

"""Scores on the clients' own samples, against plain torch, one client at a time."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.fleets import make_fleet
from helpers.small_tasks import TinyNet, make_learner, tiny_data, tiny_task
from lesson import FedAvg, Settings, Simulation
from lesson.core.arrays import IntArray
from lesson.core.errors import DivergedError
from lesson.learn.cpu import CpuBackend
from lesson.learn.data import Dataset
from lesson.learn.evaluate import CHUNK_SAMPLES, ClientScores, judge
from lesson.learn.learner import Learner
from lesson.learn.models import Replica
from lesson.learn.partition import Partition, Pool
from lesson.learn.task import Task, make_task

DATA = tiny_data(3000)
"""2000 training samples: four chunks."""


def plain_logits(vector: Tensor, data: Dataset, samples: IntArray) -> tuple[Tensor, Tensor]:
    """Return the logits of training samples with these parameters, and their labels."""
    model = TinyNet()
    torch.nn.utils.vector_to_parameters(vector.clone(), model.parameters())
    with torch.no_grad():
        logits = model(torch.from_numpy(data.train_images[samples]).float() / 255)
    return logits, torch.from_numpy(data.train_labels[samples])


def check_by_hand(scores: ClientScores, learner: Learner, data: Dataset, version: int) -> None:
    """Accuracy as a count over a count, loss within rounding, client by client."""
    holdings = learner.task.holdings
    assert len(scores.accuracy) == len(scores.loss) == len(holdings.num_samples)
    for client, size in enumerate(holdings.num_samples.tolist()):
        logits, truth = plain_logits(learner.versions[version], data, holdings[client])
        assert scores.accuracy[client] == int((logits.argmax(1) == truth).sum()) / size
        assert scores.loss[client] == pytest.approx(
            torch.nn.functional.cross_entropy(logits.double(), truth).item(), rel=1e-5
        )


@pytest.fixture
def learner() -> Iterator[Learner]:
    """After a few rounds, on uneven parts: clients that differ."""
    settings = Settings(split="dirichlet-per-class", beta=0.5, batch_size=5)
    made = make_learner(make_task(settings, DATA, 4, seed=0, factory=TinyNet))
    simulated = Simulation(FedAvg(), make_fleet([1.0, 2.0, 3.0, 4.0]), model_server=made)
    for _ in range(8):
        simulated.step()
    yield made
    made.close()


def test_client_scores_by_hand(learner: Learner) -> None:
    scores = learner.client_scores(8)
    check_by_hand(scores, learner, DATA, 8)
    assert len(DATA.train_labels) > CHUNK_SAMPLES
    assert len(set(scores.accuracy.tolist())) > 1
    assert len(set(scores.loss.tolist())) == 4


def test_a_model_of_zeros_knows_nothing(learner: Learner) -> None:
    """All logits are 0: every loss is ln 3, and the first class is named each time."""
    learner.versions[9] = torch.zeros_like(learner.versions[8])
    scores = learner.client_scores(9)
    assert scores.loss == pytest.approx(np.full(4, math.log(3)), rel=1e-6)
    holdings = learner.task.holdings
    assert scores.accuracy.tolist() == [
        np.count_nonzero(DATA.train_labels[holdings[client]] == 0) / size
        for client, size in enumerate(holdings.num_samples.tolist())
    ]


def test_accuracy_by_class(learner: Learner) -> None:
    assert learner.class_accuracy(8) @ np.bincount(DATA.test_labels) == pytest.approx(
        learner.score(8).accuracy * len(DATA.test_labels)
    )
    learner.versions[9] = torch.zeros_like(learner.versions[8])
    assert learner.class_accuracy(9).tolist() == [1.0, 0.0, 0.0]  # the first class is named each time
    shares = learner.class_shares(np.array([2]), 3)
    held = DATA.train_labels[learner.task.holdings[2]]
    assert shares.tolist() == [[np.mean(held == label) for label in range(3)]]


def test_together_they_give_the_global_loss(learner: Learner) -> None:
    """Eq. (1): Σ |D_i| / |D| f_i is the mean loss over all samples, each of which somebody holds."""
    scores, sizes = learner.client_scores(8), learner.task.holdings.num_samples
    logits, truth = plain_logits(learner.versions[8], DATA, np.arange(len(DATA.train_labels)))
    assert sizes.sum() == len(truth)
    total = torch.nn.functional.cross_entropy(logits.double(), truth).item()
    assert scores.loss @ sizes / sizes.sum() == pytest.approx(total, rel=1e-6)
    assert scores.global_loss == pytest.approx(total, rel=1e-6)
    assert scores.loss.mean() != pytest.approx(total, rel=1e-6), "the weights do not matter here"


def test_the_same_bits_on_any_number_of_threads(learner: Learner) -> None:
    scores = []
    for num_threads in (1, 3):
        backend = CpuBackend(learner.task, num_threads)
        scores.append(backend.client_scores(learner.versions[8], learner.task.holdings))
        backend.close()
    assert np.array_equal(scores[0].accuracy, scores[1].accuracy)
    assert np.array_equal(scores[0].loss, scores[1].loss)


def test_clients_of_a_pool_share_samples() -> None:
    made = make_learner(tiny_task(30, split="dirichlet-pool", samples_per_client=(3, 40), beta=0.5))
    holdings = made.task.holdings
    assert isinstance(holdings, Pool)
    held = np.concatenate([holdings[client] for client in range(30)])
    assert len(np.unique(held)) < len(held)
    check_by_hand(made.client_scores(0), made, tiny_data(), 0)
    made.close()


def test_a_client_without_samples_has_no_score() -> None:
    nothing = np.empty(0, dtype=np.int64)
    holdings = Partition.of([np.array([3, 1]), nothing, np.array([7])])
    made = make_learner(Task(tiny_data(), holdings, TinyNet, 5, False, 0))
    scores = made.client_scores(0)
    made.close()
    assert np.isnan(scores.accuracy).tolist() == np.isnan(scores.loss).tolist() == [False, True, False]


def test_a_loss_that_is_no_longer_finite_stops_the_run(learner: Learner) -> None:
    """The parameters are finite, what they give is not: 1e30 of the convolution times 1e30 of the layer after it."""
    learner.versions[9] = 1e30 * learner.versions[8]
    told = []
    for scored in (learner.client_scores, learner.score):
        with pytest.raises(DivergedError, match="the loss is no longer finite after round 8, with 4 clients") as caught:
            scored(9)
        told.append(str(caught.value))
    assert told[0] == told[1]


def test_only_what_clients_hold_is_judged(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients with three samples each, one of which they share; the scores are those of judging everything."""
    judged: list[int] = []
    held = Partition.of([np.array([4, 90, 7]), np.array([90, 11, 2])])
    backend = CpuBackend(learner.task)

    def counted(replica: Replica, images: Tensor, labels: Tensor) -> Tensor:
        judged.append(len(labels))
        return judge(replica, images, labels)

    monkeypatch.setattr("lesson.learn.evaluate.judge", counted)
    scores = backend.client_scores(learner.versions[8], held)
    assert sum(judged) == 5
    everything = Partition.of([np.array([sample]) for sample in range(len(learner.task.train_labels))])
    single = backend.client_scores(learner.versions[8], everything)
    backend.close()
    assert scores.loss == pytest.approx([single.loss[held[client]].mean() for client in (0, 1)], rel=1e-5)
    assert scores.accuracy == pytest.approx([single.accuracy[held[client]].mean() for client in (0, 1)])

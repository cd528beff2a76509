"""Scores on the test images and on the clients' own samples, against plain torch."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.fleets import make_fleet
from helpers.model_servers import make_server
from helpers.small_tasks import TinyNet, image_workload, tiny_data, tiny_task, tiny_workload
from lesson import FedAvg, Lesson, Settings, Simulation
from lesson.core.arrays import IntArray
from lesson.core.errors import DivergedError
from lesson.learn.cpu import CpuBackend
from lesson.learn.data import Dataset
from lesson.learn.divergence import NewestCohort
from lesson.learn.evaluation import Evaluator
from lesson.learn.model_server import GlobalModel
from lesson.learn.partition import Partition, Pool
from lesson.learn.scores import CHUNK_SAMPLES, ClientScores, judge
from lesson.learn.template import Replica
from lesson.learn.workload import Workload
from lesson.settings.sections import TrainingSettings

DATA = tiny_data(3000)
"""2000 training samples: four chunks."""


def plain_logits(vector: Tensor, data: Dataset, samples: IntArray) -> tuple[Tensor, Tensor]:
    """Return the logits of training samples with these parameters, and their labels."""
    model = TinyNet()
    torch.nn.utils.vector_to_parameters(vector.clone(), model.parameters())
    with torch.no_grad():
        logits = model(torch.from_numpy(data.train_images[samples]).float() / 255)
    return logits, torch.from_numpy(data.train_labels[samples])


def check_by_hand(scores: ClientScores, workload: Workload, data: Dataset, vector: Tensor) -> None:
    """Accuracy as a count over a count, loss within rounding, client by client."""
    holdings = workload.holdings
    assert len(scores.accuracy) == len(scores.loss) == len(holdings.num_samples)
    for client, size in enumerate(holdings.num_samples.tolist()):
        logits, truth = plain_logits(vector, data, holdings[client])
        assert scores.accuracy[client] == int((logits.argmax(1) == truth).sum()) / size
        assert scores.loss[client] == pytest.approx(
            torch.nn.functional.cross_entropy(logits.double(), truth).item(), rel=1e-5
        )


@pytest.fixture(scope="module")
def workload() -> Workload:
    """Uneven parts: clients that differ."""
    settings = Settings(split="dirichlet-per-class", beta=0.5, batch_size=5)
    return image_workload(settings, DATA, 4, seed=0, factory=TinyNet)


@pytest.fixture(scope="module")
def model(workload: Workload) -> GlobalModel:
    """After a few rounds."""
    server = make_server(workload)
    simulated = Simulation(FedAvg(), make_fleet([1.0, 2.0, 3.0, 4.0]), model_server=server)
    for _ in range(8):
        simulated.step()
    server.close()
    return server.model(8)


@pytest.fixture
def evaluator(workload: Workload) -> Iterator[Evaluator]:
    made = Evaluator(workload, CpuBackend(workload))
    yield made
    made.close()


def test_a_score_by_hand(evaluator: Evaluator, model: GlobalModel) -> None:
    plain = TinyNet()
    torch.nn.utils.vector_to_parameters(model.vector.clone(), plain.parameters())
    logits = plain(torch.from_numpy(DATA.test_images).float() / 255)
    truth = torch.from_numpy(DATA.test_labels)
    score = evaluator.score(model)
    assert score.values["accuracy"] == int((logits.argmax(1) == truth).sum()) / 1000
    assert score.loss == pytest.approx(torch.nn.functional.cross_entropy(logits, truth).item(), rel=1e-5)


def test_it_learns() -> None:
    workload = tiny_workload(4)
    server, evaluator = make_server(workload), Evaluator(workload, CpuBackend(workload))
    simulated = Simulation(Lesson(10.0), make_fleet([5.0, 16.0, 30.0, 38.0]), model_server=server)
    before = evaluator.score(server.model(0))
    for _ in range(150):
        simulated.step()
    after = evaluator.score(server.model(simulated.version))
    server.close()
    evaluator.close()
    assert after.values["accuracy"] > 0.9 > before.values["accuracy"]
    assert after.loss < 0.5 * before.loss


def test_client_scores_by_hand(evaluator: Evaluator, model: GlobalModel) -> None:
    scores = evaluator.client_scores(model)
    check_by_hand(scores, evaluator.workload, DATA, model.vector)
    assert len(DATA.train_labels) > CHUNK_SAMPLES
    assert len(set(scores.accuracy.tolist())) > 1
    assert len(set(scores.loss.tolist())) == 4


def test_a_model_of_zeros_knows_nothing(evaluator: Evaluator, model: GlobalModel) -> None:
    """All logits are 0: every loss is ln 3, and the first class is named each time."""
    scores = evaluator.client_scores(replace(model, vector=torch.zeros_like(model.vector)))
    assert scores.loss == pytest.approx(np.full(4, math.log(3)), rel=1e-6)
    holdings = evaluator.workload.holdings
    assert scores.accuracy.tolist() == [
        np.count_nonzero(DATA.train_labels[holdings[client]] == 0) / size
        for client, size in enumerate(holdings.num_samples.tolist())
    ]


def test_accuracy_by_class(evaluator: Evaluator, model: GlobalModel) -> None:
    assert evaluator.class_accuracy(model) @ np.bincount(DATA.test_labels) == pytest.approx(
        evaluator.score(model).values["accuracy"] * len(DATA.test_labels)
    )
    zeros = replace(model, vector=torch.zeros_like(model.vector))
    assert evaluator.class_accuracy(zeros).tolist() == [1.0, 0.0, 0.0]  # the first class is named each time
    shares = evaluator.class_shares(np.array([2]), 3)
    held = DATA.train_labels[evaluator.workload.holdings[2]]
    assert shares.tolist() == [[np.mean(held == label) for label in range(3)]]


def test_together_they_give_the_global_loss(evaluator: Evaluator, model: GlobalModel) -> None:
    """Eq. (1): Σ |D_i| / |D| f_i is the mean loss over all samples, each of which somebody holds."""
    scores, sizes = evaluator.client_scores(model), evaluator.workload.holdings.num_samples
    logits, truth = plain_logits(model.vector, DATA, np.arange(len(DATA.train_labels)))
    assert sizes.sum() == len(truth)
    total = torch.nn.functional.cross_entropy(logits.double(), truth).item()
    assert scores.loss @ sizes / sizes.sum() == pytest.approx(total, rel=1e-6)
    assert scores.global_loss == pytest.approx(total, rel=1e-6)
    assert scores.loss.mean() != pytest.approx(total, rel=1e-6), "the weights do not matter here"


def test_scores_are_bit_identical_on_any_number_of_threads(workload: Workload, model: GlobalModel) -> None:
    scores = []
    for num_threads in (1, 3):
        backend = CpuBackend(workload, num_threads)
        scores.append(backend.client_scores(model.vector, workload.holdings))
        backend.close()
    assert np.array_equal(scores[0].accuracy, scores[1].accuracy)
    assert np.array_equal(scores[0].loss, scores[1].loss)


def test_clients_of_a_pool_share_samples() -> None:
    workload = tiny_workload(30, split="dirichlet-pool", samples_per_client=(3, 40), beta=0.5)
    evaluator, vector, holdings = (
        Evaluator(workload, CpuBackend(workload)),
        workload.initial_vector(),
        workload.holdings,
    )
    assert isinstance(holdings, Pool)
    held = np.concatenate([holdings[client] for client in range(30)])
    assert len(np.unique(held)) < len(held)
    check_by_hand(
        evaluator.client_scores(GlobalModel(vector, NewestCohort(None, 0, ""))), workload, tiny_data(), vector
    )
    evaluator.close()


def test_a_client_without_samples_has_no_score() -> None:
    nothing = np.empty(0, dtype=np.int64)
    holdings = Partition.of([np.array([3, 1]), nothing, np.array([7])])
    workload = Workload(tiny_task(), holdings, TrainingSettings(batch_size=5), 0)
    evaluator = Evaluator(workload, CpuBackend(workload))
    scores = evaluator.client_scores(GlobalModel(workload.initial_vector(), ""))
    evaluator.close()
    assert np.isnan(scores.accuracy).tolist() == np.isnan(scores.loss).tolist() == [False, True, False]


def test_a_loss_that_is_no_longer_finite_stops_the_run(evaluator: Evaluator, model: GlobalModel) -> None:
    """The parameters are finite, what they give is not: 1e30 of the convolution times 1e30 of the layer after it."""
    diverged, told = replace(model, vector=1e30 * model.vector), []
    for scored in (evaluator.client_scores, evaluator.score):
        with pytest.raises(DivergedError, match="the loss is no longer finite after round 8, with 4 clients") as caught:
            scored(diverged)
        told.append(str(caught.value))
    assert told[0] == told[1]


def test_only_what_clients_hold_is_judged(
    workload: Workload, model: GlobalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two clients with three samples each, one of which they share; the scores are those of judging everything."""
    judged: list[int] = []
    held = Partition.of([np.array([4, 90, 7]), np.array([90, 11, 2])])
    backend = CpuBackend(workload)

    def counted(replica: Replica, workload: Workload, images: Tensor, labels: Tensor) -> Tensor:
        judged.append(len(labels))
        return judge(replica, workload, images, labels)

    monkeypatch.setattr("lesson.learn.scores.judge", counted)
    scores = backend.client_scores(model.vector, held)
    assert sum(judged) == 5
    everything = Partition.of([np.array([sample]) for sample in range(len(DATA.train_labels))])
    single = backend.client_scores(model.vector, everything)
    backend.close()
    assert scores.loss == pytest.approx([single.loss[held[client]].mean() for client in (0, 1)], rel=1e-5)
    assert scores.accuracy == pytest.approx([single.accuracy[held[client]].mean() for client in (0, 1)])

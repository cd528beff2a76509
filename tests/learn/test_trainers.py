"""Fast trainers agree with the plain one."""

import numpy as np
import pytest
import torch
from small import TinyNet, cohort, tiny_data, tiny_task

from lesson import InputError, Scenario
from lesson.errors import RunStoppedError
from lesson.learn.batched import BatchedTrainer
from lesson.learn.data import Dataset, load_dataset
from lesson.learn.fused import FusedTrainer
from lesson.learn.reference import ReferenceTrainer
from lesson.learn.task import Task, Work, make_task
from lesson.learn.threads import Threads


def colours() -> Dataset:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (400, 3, 32, 32), dtype=np.uint8)
    labels = rng.integers(0, 10, 400)
    return Dataset("cifar10", images[:350], labels[:350], images[350:], labels[350:])


def make_work(num: int, steps: int = 1) -> Work:
    """Unequal weights and several step sizes."""
    weight = np.arange(1.0, num + 1)
    return Work(
        client=np.arange(num),
        index=np.arange(num) % 3,
        lr=0.1 * (1 + np.arange(num) % 4),
        local_steps=np.full(num, steps),
        weight=0.7 * weight / weight.sum(),
    )


@pytest.fixture(params=["mnist", "cifar10", "tiny", "short"])
def task(request: pytest.FixtureRequest) -> Task:
    if request.param == "mnist":
        return make_task(Scenario(), load_dataset("mnist"), 50, seed=0)
    if request.param == "cifar10":
        return make_task(Scenario(split="iid", batch_size=10), colours(), 12, seed=0)
    # "short": fewer samples than a batch for some clients
    return tiny_task(8, batch_size=5 if request.param == "tiny" else 25)


@pytest.mark.parametrize("num", [1, 5, 8])
def test_fused_agrees_with_reference(task: Task, num: int) -> None:
    base, work = task.initial_vector(), make_work(num)
    threads = Threads(task.factory)
    expected = cohort(ReferenceTrainer(task), base, work)
    given = cohort(FusedTrainer(task, threads), base, work)
    threads.close()
    moved = (expected - 0.7 * base).abs().max()
    assert moved > 1e-4
    assert (given - expected).abs().max() < 1e-5 * max(1.0, float(moved))


def test_fused_has_the_same_bits_on_any_number_of_threads() -> None:
    task = make_task(Scenario(), load_dataset("mnist"), 50, seed=0)
    base, work = task.initial_vector(), make_work(50)
    results = []
    for count in (1, 2, 5):
        threads = Threads(task.factory, count)
        results.append(cohort(FusedTrainer(task, threads), base, work))
        threads.close()
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("epochs", [False, True])
def test_workers_are_the_reference_to_the_bit(epochs: bool) -> None:
    task = tiny_task(6, local_epochs=int(epochs))
    base, work = task.initial_vector(), make_work(6, steps=4)
    trainer = BatchedTrainer(task, 2)
    try:
        expected = cohort(ReferenceTrainer(task), base, work)
        assert torch.equal(cohort(trainer, base, work), expected)
        assert torch.equal(cohort(trainer, base, work[:3]), cohort(ReferenceTrainer(task), base, work[:3]))
    finally:
        trainer.close()


def test_one_step_by_hand() -> None:
    """Eq. (12): ω − λ·∇f on the client's own minibatch, written with torch's own optimiser."""
    task = tiny_task(4)
    base = task.initial_vector()
    work = Work(np.array([2]), np.array([1]), np.array([0.3]), np.array([1]), np.array([1.0]))
    model = task.factory()
    torch.nn.utils.vector_to_parameters(base.clone(), model.parameters())
    samples = task.minibatches(work, 1)[0, 0]
    assert set(samples.tolist()) <= set(task.holdings[2])
    images = torch.from_numpy(tiny_data().train_images)[samples].float() / 255
    torch.nn.functional.cross_entropy(model(images), task.train_labels[samples]).backward()
    torch.optim.SGD(model.parameters(), lr=0.3).step()
    expected = torch.nn.utils.parameters_to_vector(model.parameters())
    assert torch.allclose(cohort(ReferenceTrainer(task), base, work), expected, atol=1e-6)


def test_a_clients_work_does_not_depend_on_who_else_trains() -> None:
    task = tiny_task(6)
    base, work = task.initial_vector(), make_work(6, steps=3)
    alone = cohort(ReferenceTrainer(task), base, work[4:5])
    others = cohort(ReferenceTrainer(task), base, work[:4]) + cohort(ReferenceTrainer(task), base, work[5:])
    assert torch.allclose(cohort(ReferenceTrainer(task), base, work), alone + others, atol=1e-6)


def test_a_worker_that_dies_stops_the_run() -> None:
    task = tiny_task(6)
    trainer = BatchedTrainer(task, 2)
    trainer._workers[0].kill()
    trainer._workers[0].join()
    try:
        with pytest.raises(RunStoppedError, match="a training process has ended; --resume goes on"):
            cohort(trainer, task.initial_vector(), make_work(6, steps=4))
    finally:
        trainer.close()


def test_a_model_that_workers_cannot_import_is_told() -> None:
    task = tiny_task(6)
    task.factory = lambda: TinyNet()
    with pytest.raises(InputError, match="model must be a class or function of a module to train several steps"):
        BatchedTrainer(task, 2)

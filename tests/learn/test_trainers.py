"""Fast trainers agree with the plain one."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from helpers.runs import PARTS, settings
from helpers.small_tasks import (
    Linear,
    NormedNet,
    TinyNet,
    image_workload,
    tiny_data,
    tiny_task,
    tiny_workload,
)
from helpers.trainers import colors, make_cohort, one_row, several, sum_of
from lesson import InputError, Settings
from lesson.core.errors import RunStoppedError
from lesson.learn.batched import BatchedTrainer
from lesson.learn.data import Dataset, load_dataset
from lesson.learn.fused import FusedTrainer
from lesson.learn.local_optimizer import LocalTraining
from lesson.learn.partition import Partition
from lesson.learn.reference import ReferenceTrainer
from lesson.learn.remote import Received
from lesson.learn.tasks import image_task
from lesson.learn.threads import Threads
from lesson.learn.workload import Workload, make_workload
from lesson.runs.execute import execute
from lesson.settings.sections import TrainingSettings


@contextmanager
def one_thread() -> Iterator[None]:
    """As torch works in each of several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["mnist", "cifar10", "tiny", "short"])
def workload(request: pytest.FixtureRequest) -> Workload:
    if request.param == "mnist":
        return image_workload(Settings(), load_dataset("mnist"), 50, seed=0)
    if request.param == "cifar10":
        return image_workload(Settings(split="iid", batch_size=10), colors(), 12, seed=0)
    # "short": fewer samples than a batch for some clients
    return tiny_workload(8, batch_size=5 if request.param == "tiny" else 25)


@pytest.mark.parametrize("num", [1, 5, 8])
def test_fused_agrees_with_reference(workload: Workload, num: int) -> None:
    cohort, threads = make_cohort(workload.initial_vector(), num), Threads(workload.template)
    expected = sum_of(ReferenceTrainer(workload), cohort)
    given = sum_of(FusedTrainer(workload, threads), cohort)
    threads.close()
    moved = (expected - 0.7 * cohort.base).abs().max()
    assert moved > 1e-4
    assert (given - expected).abs().max() < 1e-5 * max(1.0, float(moved))


def test_fused_sums_are_bit_identical_on_any_number_of_threads() -> None:
    workload = image_workload(Settings(), load_dataset("mnist"), 50, seed=0)
    cohort = make_cohort(workload.initial_vector(), 50)
    results = []
    for count in (1, 2, 5):
        threads = Threads(workload.template, count)
        results.append(sum_of(FusedTrainer(workload, threads), cohort))
        threads.close()
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_cohorts_trained_together_are_bit_identical_to_each_alone() -> None:
    """Each alone is trained as all were when a cohort began only after the one before."""
    workload = image_workload(Settings(), load_dataset("mnist"), 50, seed=0)
    everybody = make_cohort(workload.initial_vector(), 50)
    parts = [everybody[rows] for rows in np.split(np.arange(50), (40, 43, 44))]
    cohorts = [replace(part, base=part.base + 0.01 * place) for place, part in enumerate(parts)]
    for count in (1, 3):
        threads = Threads(workload.template, count)
        trainer = FusedTrainer(workload, threads)
        together, alone = trainer.sums(cohorts), [sum_of(trainer, cohort) for cohort in cohorts]
        threads.close()
        for given, expected in zip(together, alone, strict=True):
            assert torch.equal(given, expected)


def test_one_step_of_a_cohort_in_its_order() -> None:
    """(Σ a)·ω less the weighted gradients of each part, one after the other: 50 · 20 samples are two parts."""
    workload = image_workload(Settings(batch_size=20), load_dataset("mnist"), 50, seed=0)
    cohort, threads = make_cohort(workload.initial_vector(), 50), Threads(workload.template, 2)
    (samples,), replica = workload.minibatches(cohort, 1), workload.replica()
    replica.load(cohort.base)
    expected = cohort.base * float(cohort.weight.sum())
    with one_thread():
        for rows in (slice(25), slice(25, 50)):
            part = cohort[rows]
            batch = workload.batch(replica, workload.ids(part), samples[rows], torch.from_numpy(part.first))
            scale = torch.from_numpy(part.weight * part.lr) / batch.counts
            losses = functional.cross_entropy(
                replica.outputs(batch.inputs, training=True), batch.targets, reduction="none"
            )
            expected -= replica.gradient(losses @ scale.repeat_interleave(batch.counts).float())
    given = sum_of(FusedTrainer(workload, threads), cohort)
    threads.close()
    assert torch.equal(given, expected)


def test_fused_models_agree_with_the_reference(workload: Workload) -> None:
    cohorts, threads = several(workload), Threads(workload.template)
    given = FusedTrainer(workload, threads).models(cohorts)
    sums = FusedTrainer(workload, threads).sums(cohorts)
    threads.close()
    expected = ReferenceTrainer(workload).models(cohorts)
    for cohort, models, wanted, total in zip(cohorts, given, expected, sums, strict=True):
        moved = float((wanted - cohort.base).abs().max())
        assert models.shape == (len(cohort), len(cohort.base))
        assert moved > 1e-4
        assert (models - wanted).abs().max() < 1e-5 * max(1.0, moved)
        assert (torch.from_numpy(cohort.weight).float() @ models - total).abs().max() < 1e-5 * max(1.0, moved)


@pytest.mark.parametrize("steps", [1, 3])
def test_reference_models_are_cohorts_of_one(steps: int) -> None:
    """Whatever they weigh: cohorts count each once here, and not at all there."""
    trainer = ReferenceTrainer(tiny_workload(8))
    cohorts = several(trainer.workload, steps)
    given = trainer.models([replace(cohort, weight=np.zeros(len(cohort))) for cohort in cohorts])
    for cohort, models in zip(cohorts, given, strict=True):
        once = replace(cohort, weight=np.ones(len(cohort)))
        alone = [sum_of(trainer, once[row : row + 1]) for row in range(len(cohort))]
        assert torch.equal(models, torch.stack(alone))
        assert len(torch.unique(models, dim=0)) == len(cohort)
        total = torch.from_numpy(cohort.weight).float() @ models
        assert torch.allclose(total, sum_of(trainer, cohort), atol=1e-6)


def test_fused_models_are_bit_identical_on_any_number_of_threads() -> None:
    workload = image_workload(Settings(), load_dataset("mnist"), 50, seed=0)
    results = []
    for count in (1, 2, 5):
        threads = Threads(workload.template, count)
        results.append(torch.cat(FusedTrainer(workload, threads).models(several(workload))))
        threads.close()
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_models_of_workers_are_bit_identical_to_the_reference() -> None:
    """More rows than a block takes, works of unequal length; what was given stays as it is when others are trained."""
    workload = tiny_workload(8, proximal_mu=0.5)
    everybody = make_cohort(workload.initial_vector(), 8, steps=2)
    many = replace(everybody[np.tile(np.arange(8), 9)], index=np.repeat(np.arange(9), 8))
    many.local_steps[::3] = 3
    trainer, reference = BatchedTrainer(workload, 2), ReferenceTrainer(workload)
    try:
        given, others = trainer.models([many]), trainer.models(several(workload, 2))
        total = sum_of(trainer, many)
    finally:
        trainer.close()
    assert torch.equal(given[0], reference.models([many])[0])
    assert torch.allclose(torch.from_numpy(many.weight).float() @ given[0], total, atol=1e-5)
    for models, expected in zip(others, reference.models(several(workload, 2)), strict=True):
        assert torch.equal(models, expected)


def test_returned_models_are_new_tensors() -> None:
    """Writing into them changes neither the model they started from nor what is trained later."""
    workload = tiny_workload(8)
    threads, received, cohort = Threads(workload.template, 2), Received(), several(workload)[2]
    received.held |= {(client, client % 3): np.ones(3, np.float32) for client in (3, 4, 5)}
    before = cohort.base.clone()
    for trainer in (ReferenceTrainer(workload), FusedTrainer(workload, threads), received):
        (first,) = trainer.models([cohort])
        kept = first.clone()
        first.zero_()
        assert torch.equal(trainer.models([cohort])[0], kept)
        assert torch.equal(cohort.base, before)
    threads.close()


def test_models_that_were_received() -> None:
    """By client and update; that of several minibatches is there for each of them."""
    received, base = Received(), torch.zeros(2)
    received.held |= {(0, 0): np.array([1.0, 2.0]), (1, 4): np.array([3.0, 5.0]), (1, 5): np.array([8.0, 13.0])}
    columns = {"client": np.array([0, 1, 1]), "index": np.array([0, 4, 4]), "first": np.array([0, 0, 1])}
    cohort = replace(make_cohort(base, 3), **columns)
    first, second = received.models([cohort, one_row(base, 1, 0.1, index=5)])
    assert first.tolist() == [[1.0, 2.0], [3.0, 5.0], [3.0, 5.0]]
    assert second.tolist() == [[8.0, 13.0]]
    assert torch.allclose(torch.from_numpy(cohort.weight) @ first, sum_of(received, cohort))


class NormedDroppingNet(NormedNet):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(functional.dropout(images, 0.3, self.training))


def test_workers_train_epochs_batchnorm_and_dropout_as_the_reference_does() -> None:
    """Random numbers depend on client, update and step alone; the global generator is left as it was."""
    settings = Settings(batch_size=5, split="iid", local_epochs=1)
    workload = image_workload(settings, tiny_data(), 6, 0, NormedDroppingNet)
    cohort, trainer = make_cohort(workload.initial_vector(), 6, steps=4), BatchedTrainer(workload, 2)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    try:
        given, given_of_three = sum_of(trainer, cohort), sum_of(trainer, cohort[:3])
    finally:
        trainer.close()
    assert torch.equal(given, sum_of(ReferenceTrainer(workload), cohort))
    assert torch.equal(given_of_three, sum_of(ReferenceTrainer(workload), cohort[:3]))
    assert torch.equal(torch.get_rng_state(), before)
    parts = [sum_of(ReferenceTrainer(workload), cohort[rows]) for rows in (slice(2), slice(2, 6))]
    assert torch.allclose(given, torch.stack(parts).sum(0), atol=1e-6)


def test_one_step_by_hand() -> None:
    """Eq. (12): ω − λ·∇f on the client's own minibatch, written with torch's own optimizer."""
    workload = tiny_workload(4)
    base = workload.initial_vector()
    cohort = one_row(base, 2, 0.3, index=1)
    model = workload.task.model()
    torch.nn.utils.vector_to_parameters(base.clone(), model.parameters())
    samples = workload.minibatches(cohort, 1)[0, 0]
    assert set(samples.tolist()) <= set(workload.holdings[2])
    images = torch.from_numpy(tiny_data().train_images)[samples].float() / 255
    torch.nn.functional.cross_entropy(model(images), workload.train_targets[samples]).backward()
    torch.optim.SGD(model.parameters(), lr=0.3).step()
    expected = torch.nn.utils.parameters_to_vector(model.parameters())
    assert torch.allclose(sum_of(ReferenceTrainer(workload), cohort), expected, atol=1e-6)


def prox_by_hand(workload: Workload, client: int, lr: float, mu: float, num_steps: int) -> torch.Tensor:
    """FedProx (Li et al. 2020): w ← w − λ·(∇f(w) + μ·(w − w_start)), with plain torch on the client's minibatches."""
    base = workload.initial_vector()
    cohort = one_row(base, client, lr, local_steps=num_steps)
    images, vector = torch.from_numpy(tiny_data().train_images).float() / 255, base.clone()
    for samples in workload.minibatches(cohort, num_steps)[:, 0]:
        model = workload.task.model()
        torch.nn.utils.vector_to_parameters(vector, model.parameters())
        loss = torch.nn.functional.cross_entropy(model(images[samples]), workload.train_targets[samples])
        gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))])
        vector = vector - lr * (gradient + mu * (vector - base))
    return vector


def test_the_proximal_term_by_hand() -> None:
    """Two steps: the first starts where the term is 0, the second pulls back by λ·μ of what the first has moved."""
    workload = tiny_workload(4, proximal_mu=0.5)
    base = workload.initial_vector()
    given = sum_of(ReferenceTrainer(workload), one_row(base, 2, 0.3, local_steps=2))
    assert torch.allclose(given, prox_by_hand(workload, 2, 0.3, 0.5, 2), atol=1e-6)
    without, first = (prox_by_hand(workload, 2, 0.3, 0.0, steps) for steps in (2, 1))
    assert torch.allclose(given, without - 0.3 * 0.5 * (first - base), atol=1e-6)
    assert (given - without).abs().max() > 1e-3


def test_the_proximal_term_in_numbers() -> None:
    """A single image that is white in one pixel, three classes, all parameters 0 at the start, λ = 1, μ = 0.5.

    The gradient of class 0's bias is p − y. Step 1: p = 1/3, so b = (2/3, −1/3, −1/3), and the pixel's weight the same.
    Step 2: the logits are (4/3, −2/3, −2/3), p₀ = 1 / (1 + 2·e⁻²) = 0.786986, and
    b₀ = 2/3 − (p₀ − 1) − 0.5·2/3 = 0.546347.
    """
    images = np.zeros((1, 1, 6, 6), dtype=np.uint8)
    images[0, 0, 2, 3] = 255
    data, holdings = Dataset("one", images, np.array([0]), images, np.array([0])), Partition.of([np.array([0])])
    training = TrainingSettings(batch_size=1, proximal_mu=0.5)
    workload = Workload(image_task(data, Linear), holdings, training, 0)
    given = sum_of(ReferenceTrainer(workload), one_row(torch.zeros(3 * 36 + 3), 0, 1.0, local_steps=2))
    assert given[-3].item() == pytest.approx(0.546347, abs=1e-6)
    assert given[2 * 6 + 3].item() == pytest.approx(0.546347, abs=1e-6)
    assert given[0].item() == 0


def test_the_proximal_term_is_zero_in_one_step() -> None:
    cohort = make_cohort(tiny_workload(6).initial_vector(), 6)
    pulled, free = (sum_of(ReferenceTrainer(tiny_workload(6, proximal_mu=mu)), cohort) for mu in (0.5, 0.0))
    assert torch.equal(pulled, free)


def test_steps_without_a_proximal_term_are_bit_identical() -> None:
    """The step as it was before there was one: the parameters move by −λ·∇f and nothing else is added."""
    workload = tiny_workload(4)
    base, replica = workload.initial_vector(), workload.replica()
    cohort = one_row(base, 2, 0.3, local_steps=3)
    replica.load(base.clone())
    steps = torch.arange(3)
    ids = torch.full((3,), 2), torch.zeros(3, dtype=torch.int64)
    for batch in workload.batch(replica, ids, workload.minibatches(cohort, 3)[:, 0], steps).split():
        loss = torch.nn.functional.cross_entropy(replica.outputs(batch.inputs, training=True), batch.targets)
        for parameter, part in zip(replica.parameters, torch.autograd.grad(loss, replica.parameters), strict=True):
            parameter.data.add_(part, alpha=-0.3)
    assert torch.equal(sum_of(ReferenceTrainer(workload), cohort), replica.vector())


def test_a_clients_training_does_not_depend_on_other_clients() -> None:
    workload = tiny_workload(6)
    cohort, trainer = make_cohort(workload.initial_vector(), 6, steps=3), ReferenceTrainer(workload)
    parts = [sum_of(trainer, cohort[rows]) for rows in (slice(4, 5), slice(4), slice(5, 6))]
    assert torch.allclose(sum_of(trainer, cohort), torch.stack(parts).sum(0), atol=1e-6)


def test_closing_the_trainer_ends_workers_that_are_still_starting() -> None:
    trainer = BatchedTrainer(tiny_workload(6), 2)
    trainer.close()
    assert [worker.exitcode for worker in trainer._workers] == [-signal.SIGKILL] * 2


def test_a_worker_that_dies_stops_the_run() -> None:
    workload = tiny_workload(6)
    trainer = BatchedTrainer(workload, 2)
    trainer._workers[0].kill()
    trainer._workers[0].join()
    try:
        with pytest.raises(
            RunStoppedError,
            match=r"a training process was killed, probably for lack of memory; .* then resume the run",
        ):
            sum_of(trainer, make_cohort(workload.initial_vector(), 6, steps=4))
    finally:
        trainer.close()


ENDLESS = """
import sys
import threading
import time
sys.path[:0] = {paths!r}
from helpers.small_tasks import tiny_workload
from helpers.trainers import make_cohort, sum_of
from lesson.learn.batched import BatchedTrainer
if __name__ == "__main__":
    workload = tiny_workload(6)
    trainer, base = BatchedTrainer(workload, 1), workload.initial_vector()
    sum_of(trainer, make_cohort(base, 1, steps=1))
    endless = make_cohort(base, 1, steps=10**9)
    threading.Thread(target=sum_of, args=(trainer, endless), daemon=True).start()
    time.sleep(0.5)
    print("training", flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_worker_ends_in_the_middle_of_training_when_its_parent_is_killed(tmp_path: Path) -> None:
    """The worker holds the other end of the pipe, so the test reads to its end only if the worker ends, too."""
    script = tmp_path / "script.py"
    script.write_text(ENDLESS.format(paths=[str(Path(__file__).parents[1])]))
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"training\n"
        process.kill()
        process.communicate(timeout=60)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.wait()


def test_a_task_that_cannot_be_copied_into_other_processes_is_reported() -> None:
    lock = threading.Lock()

    def model() -> TinyNet:
        with lock:
            return TinyNet()

    workload = make_workload(Settings(batch_size=5, split="iid"), replace(tiny_task(), model=model), 6, seed=0)
    with pytest.raises(InputError, match=r"^task cannot be copied into other processes: .*lock"):
        BatchedTrainer(workload, 2)


@pytest.mark.parametrize("epochs", [0, 2])
def test_long_local_training_in_parts_is_bit_identical(epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = tiny_workload(6, local_epochs=epochs)
    cohort = make_cohort(workload.initial_vector(), 6, steps=30)
    whole = sum_of(ReferenceTrainer(workload), cohort)
    monkeypatch.setattr("lesson.learn.workload.MAX_DRAWN", 200)
    monkeypatch.setattr("lesson.learn.reference.MAX_GATHERED", 15)
    assert torch.equal(sum_of(ReferenceTrainer(workload), cohort), whole)


def test_a_billion_local_steps_begin_in_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first steps are trained before the last ones are drawn."""
    workload, stepped = tiny_workload(6), 0

    class EnoughError(BaseException):
        pass

    def descend(self: LocalTraining, *_: object) -> None:
        nonlocal stepped
        stepped += 1
        if stepped == 3000:
            raise EnoughError

    monkeypatch.setattr(LocalTraining, "descend", descend)
    with pytest.raises(EnoughError):
        sum_of(ReferenceTrainer(workload), make_cohort(workload.initial_vector(), 1, steps=10**9))


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ({"local_steps": 10**9}, r"^\[training\] local_steps must be <= 20000000, got 1000000000: one local training"),
        (
            {"local_steps": 10**8, "batch_size": 10**9},
            r"local_steps must be <= 2941176, got 100000000: .*10\^8 samples$",
        ),
        ({"local_epochs": 10**9}, r"^\[training\] local_epochs must be <= 2941176, got 1000000000: one local training"),
    ],
)
def test_local_work_that_would_never_end_is_rejected(training: dict[str, int], said: str, tmp_path: Path) -> None:
    """Of 200 samples, each of 6 clients holds 34 at most; a batch has 5, or all."""
    endless = settings().with_changes(**training)
    with pytest.raises(InputError, match=said):
        execute(endless, tmp_path / "run", **PARTS)
    assert not (tmp_path / "run").exists()
    tiny_workload(6, local_steps=20_000_000)
    tiny_workload(6, local_steps=1, batch_size=10**9)


def fail_with(error: Exception) -> Callable[..., Any]:
    def make(*_: object, **__: object) -> Any:
        raise error

    return make


def test_a_run_that_runs_out_of_memory_should_not_be_resumed(tmp_path: Path) -> None:
    def make(*_: object, **__: object) -> Any:
        torch.empty(1 << 60)

    said = r"not enough memory for this run \(.*you tried to allocate \d+ bytes.*\); .* resuming it would fail again"
    with pytest.raises(RunStoppedError, match=said):
        execute(settings(), tmp_path / "run", make=make)
    for error, kept in (
        (torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2.00 GiB."), r"\(CUDA out of memory. Tried "),
        (MemoryError("Unable to allocate 8.00 TiB"), r"\(Unable to allocate 8.00 TiB\)"),
        (MemoryError(), "not enough memory for this run; use"),
    ):
        with pytest.raises(RunStoppedError, match=kept):
            execute(settings(), tmp_path / "run", make=fail_with(error))


def test_an_error_that_only_mentions_memory_is_raised_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"^the memory of my strategy is empty$"):
        execute(settings(), tmp_path / "run", make=fail_with(RuntimeError("the memory of my strategy is empty")))

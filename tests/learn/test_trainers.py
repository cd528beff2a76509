"""Fast trainers agree with the reference trainer, which follows the equations."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import lesson
from helpers.any_tasks import COUPLED, INDEPENDENT, Adapted, Mlp, feature_task, workload_of
from helpers.runs import PARTS
from helpers.runs import settings as run_settings
from helpers.small_tasks import Linear, image_workload, tiny_data, tiny_task, tiny_workload
from helpers.trainers import check_agreement, colors, make_cohort, one_row, random_cohorts, sum_of
from lesson import InputError, RunStoppedError, Settings
from lesson.learn.batched import BatchedTrainer
from lesson.learn.data import Samples
from lesson.learn.fused import FusedTrainer
from lesson.learn.partition import Partition
from lesson.learn.reference import BLOCK, ReferenceTrainer
from lesson.learn.remote import Received, train_update
from lesson.learn.sharing import pack
from lesson.learn.tasks import image_task
from lesson.learn.threads import Threads
from lesson.learn.workload import Workload
from lesson.runs.execute import execute
from lesson.settings.sections import TrainingSettings

SIZES = st.lists(st.sampled_from([1, 2, 7, 34]), min_size=1, max_size=2)
SEEDS = st.integers(0, 2**32 - 1)
SPLITS: dict[str, dict[str, Any]] = {"iid": {}, "unequal": {"split": "quantity-skew", "beta": 0.5, "batch_size": 20}}


@cache
def workload_named(name: str, split: str) -> Workload:
    return workload_of(tiny_task() if name == "images" else INDEPENDENT[name](), **SPLITS[split])


@pytest.mark.parametrize("name", ["images", *INDEPENDENT])
@settings(max_examples=3)
@given(split=st.sampled_from(sorted(SPLITS)), sizes=SIZES, seed=SEEDS)
def test_fused_agrees_with_the_reference(name: str, split: str, sizes: list[int], seed: int) -> None:
    """On any number of threads, and for cohorts trained together or alone, results are even bit-identical."""
    workload = workload_named(name, split)
    cohorts, results = random_cohorts(workload, sizes, seed), []
    for count in (1, 3):
        threads = Threads(workload.template, count)
        trainer = FusedTrainer(workload, threads)
        results.append(torch.cat([*trainer.sums(cohorts), *trainer.models(cohorts)[0]]))
        results.append(torch.cat([*(sum_of(trainer, one) for one in cohorts), *trainer.models(cohorts[:1])[0]]))
        if count == 1:
            check_agreement(trainer, ReferenceTrainer(workload), cohorts, 1e-3)
        threads.close()
    assert all(torch.equal(result, results[0]) for result in results[1:])


def other_precision(dtype: torch.dtype) -> Workload:
    return workload_of(feature_task(lambda: Mlp().to(dtype), prepare=lambda inputs: inputs.to(dtype)))


@pytest.mark.parametrize(
    ("make", "tolerance"),
    [
        (lambda: image_workload(Settings(split="iid", batch_size=10), colors(), 12, seed=0), 1e-3),
        (lambda: other_precision(torch.float64), 1e-4),
        (lambda: other_precision(torch.bfloat16), 0.5),
    ],
    ids=["dropout of the paper's network", "float64", "bfloat16"],
)
def test_fused_agrees_for_dropout_and_other_precisions(make: Callable[[], Workload], tolerance: float) -> None:
    workload = make()
    threads = Threads(workload.template)
    trainer, cohorts = FusedTrainer(workload, threads), random_cohorts(workload, [8], 0)
    check_agreement(trainer, ReferenceTrainer(workload), cohorts, tolerance)
    threads.close()


@pytest.fixture(scope="module")
def batched() -> Iterator[tuple[BatchedTrainer, ReferenceTrainer, Workload]]:
    """Two worker processes; the task has every kind of layer and state, and closures, which they cannot import."""
    scale = 2.0

    class Local(Adapted):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.dropout = nn.BatchNorm1d(10), nn.Dropout(0.2)

        def forward(self, features: Tensor) -> Tensor:
            return super().forward(self.dropout(self.norm(features)))

    task = feature_task(
        Local,
        loss=lambda outputs, targets: functional.cross_entropy(outputs, targets, reduction="none") * scale,
        prepare=lambda features: features / scale,
    )
    workload = workload_of(task, local_optimizer="adamw", clip_norm=0.5, proximal_mu=0.5)
    trainer = BatchedTrainer(workload, 2)
    yield trainer, ReferenceTrainer(workload), workload
    trainer.close()


@settings(max_examples=4)
@given(st.lists(st.sampled_from([1, 7, BLOCK + 9]), min_size=1, max_size=3), SEEDS)
def test_worker_processes_are_bit_identical_to_the_reference(
    batched: tuple[BatchedTrainer, ReferenceTrainer, Workload], sizes: list[int], seed: int
) -> None:
    trainer, reference, workload = batched
    cohorts = random_cohorts(workload, sizes, seed, max_steps=3)
    models, sums = trainer.models(cohorts), trainer.sums(cohorts)
    before = torch.get_rng_state()
    expected = [*reference.models(cohorts), *reference.sums(cohorts)]
    assert all(torch.equal(one, wanted) for one, wanted in zip([*models, *sums], expected, strict=True))
    assert torch.equal(torch.get_rng_state(), before)


def test_one_step_by_hand() -> None:
    """Eq. (12): ω − λ·∇f on the client's own minibatch, written with torch's own optimizer."""
    workload = tiny_workload(4)
    base = workload.initial_vector()
    cohort = one_row(base, 2, 0.3, index=1)
    model = workload.task.model()
    nn.utils.vector_to_parameters(base.clone(), model.parameters())
    samples = workload.minibatches(cohort, 1)[0, 0]
    assert set(samples.tolist()) <= set(workload.holdings[2])
    images = torch.from_numpy(tiny_data().train_inputs)[samples].float() / 255
    functional.cross_entropy(model(images), workload.train_targets[samples]).backward()
    torch.optim.SGD(model.parameters(), lr=0.3).step()
    expected = nn.utils.parameters_to_vector(model.parameters())
    assert torch.allclose(sum_of(ReferenceTrainer(workload), cohort), expected, atol=1e-6)
    remote = train_update(workload, base.numpy(), client=2, index=1, lr=0.3)
    assert torch.allclose(torch.from_numpy(remote), expected, atol=1e-6)


def test_proximal_term_in_numbers() -> None:
    """A single image that is white in one pixel, three classes, all parameters 0 at the start, λ = 1, μ = 0.5.

    The gradient of class 0's bias is p − y. Step 1: p = 1/3, so b = (2/3, −1/3, −1/3), and the pixel's weight the same.
    Step 2: the logits are (4/3, −2/3, −2/3), p₀ = 1 / (1 + 2·e⁻²) = 0.786986, and
    b₀ = 2/3 − (p₀ − 1) − 0.5·2/3 = 0.546347.
    """
    images = np.zeros((1, 1, 6, 6), dtype=np.uint8)
    images[0, 0, 2, 3] = 255
    data, holdings = Samples(images, np.array([0]), images, np.array([0])), Partition.of([np.array([0])])
    workload = Workload(image_task("one", data, Linear), holdings, TrainingSettings(batch_size=1, proximal_mu=0.5), 0)
    given = sum_of(ReferenceTrainer(workload), one_row(torch.zeros(3 * 36 + 3), 0, 1.0, local_steps=2))
    assert given[-3].item() == pytest.approx(0.546347, abs=1e-6)
    assert given[2 * 6 + 3].item() == pytest.approx(0.546347, abs=1e-6)
    assert given[0].item() == 0


OPTIMIZERS: dict[str, tuple[dict[str, Any], Any]] = {
    "nesterov": ({"momentum": 0.9, "nesterov": True}, partial(torch.optim.SGD, momentum=0.9, nesterov=True)),
    "decay": ({"weight_decay": 0.1}, partial(torch.optim.SGD, weight_decay=0.1)),
    "clipped": ({"clip_norm": 0.3}, torch.optim.SGD),
    "adamw": (
        {"local_optimizer": "adamw", "weight_decay": 0.1, "adam_beta2": 0.9},
        partial(torch.optim.AdamW, weight_decay=0.1, betas=(0.9, 0.9)),
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_local_optimizers_agree_with_torch(name: str) -> None:
    changes, make = OPTIMIZERS[name]
    workload = workload_of(feature_task(), **changes)
    base, model = workload.initial_vector(), workload.template.copy_model()
    cohort, optimizer = one_row(base, 1, 0.05, local_steps=4), make(model.parameters(), lr=0.05)
    for (samples,) in workload.minibatches(cohort, 4):
        inputs, targets = (part[samples] for part in workload.task.train)
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), changes.get("clip_norm", np.inf))
        optimizer.step()
    expected = nn.utils.parameters_to_vector(model.parameters()).detach()
    assert (expected - base).norm() > 0.01
    assert torch.allclose(sum_of(ReferenceTrainer(workload), cohort), expected, atol=1e-6)


def test_received_models_are_looked_up_by_client_and_update() -> None:
    """The model of an update of several minibatches is there for each of them."""
    received, base = Received(), torch.zeros(2)
    received.held |= {(0, 0): np.array([1.0, 2.0]), (1, 4): np.array([3.0, 5.0])}
    columns = {"client": np.array([0, 1, 1]), "index": np.array([0, 4, 4]), "first": np.array([0, 0, 1])}
    cohort = replace(make_cohort(base, 3), **columns)
    assert received.models([cohort])[0].tolist() == [[1.0, 2.0], [3.0, 5.0], [3.0, 5.0]]
    assert sum_of(received, cohort).tolist() == pytest.approx(cohort.weight @ [[1.0, 2.0], [3.0, 5.0], [3.0, 5.0]])


@pytest.mark.parametrize("epochs", [0, 2])
def test_long_local_training_in_parts_is_bit_identical(epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = tiny_workload(6, local_epochs=epochs)
    cohort = make_cohort(workload.initial_vector(), 6, steps=30)
    whole = sum_of(ReferenceTrainer(workload), cohort)
    monkeypatch.setattr("lesson.learn.workload.MAX_DRAWN", 200)
    monkeypatch.setattr("lesson.learn.reference.MAX_GATHERED", 15)
    assert torch.equal(sum_of(ReferenceTrainer(workload), cohort), whole)


def run_once(task: lesson.Task, out: Path, **changes: Any) -> lesson.Run:
    chosen = {"split": "iid", "num_clients": 8, "batch_size": 5, "rounds": 1, "device": "cpu"}
    return lesson.run("fedavg", task=task, out=out, **chosen | changes)


@pytest.mark.parametrize(
    ("task", "changes", "reason"),
    [
        (COUPLED["batch norm"], {}, "influence each other"),
        (COUPLED["contrast"], {}, "influence each other"),
        (COUPLED["dropout"], {}, "draws random numbers"),
        (feature_task, {"weight_decay": 0.1}, "not a step of plain SGD"),
        (feature_task, {"local_steps": 2}, "several local steps"),
    ],
)
def test_trainer_that_cannot_train_the_task_is_an_error(
    task: Any, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=reason):
        run_once(task(), tmp_path / "run", trainer="fused", **changes)


def test_auto_explains_its_choice_of_another_trainer(tmp_path: Path) -> None:
    lock = threading.Lock()

    def stuck(outputs: Tensor, targets: Tensor) -> Tensor:
        with lock:  # which cannot be pickled
            return functional.cross_entropy(outputs, targets, reduction="none")

    usual = run_once(feature_task(), tmp_path / "fused")
    assert usual.summary["wall_trainer"] == "fused"
    assert not any("trainer:" in note for note in usual.summary["notes"])
    other = run_once(feature_task(loss=stuck), tmp_path / "reference", local_steps=2)
    assert other.summary["wall_trainer"] == "reference"
    assert any("not batched" in note and "lock" in note for note in other.summary["notes"])


@pytest.mark.parametrize("trainer", ["reference", "batched"])
def test_loss_that_fails_in_training_is_reported_with_its_client(trainer: str, tmp_path: Path) -> None:
    """The second minibatch of an epoch over 6 samples has a single one."""

    def picky(outputs: Tensor, targets: Tensor) -> Tensor:
        if len(targets) == 1:
            raise ValueError("too few")
        return functional.cross_entropy(outputs, targets, reduction="none")

    task = feature_task(loss=picky, clients=[range(6), range(6, 12)])
    with pytest.raises(RunStoppedError, match=r"client 0 .* size 1: ValueError: too few"):
        run_once(task, tmp_path / "run", trainer=trainer, num_clients=2, split="natural", local_epochs=1)


def test_killed_worker_stops_the_run() -> None:
    workload, others = tiny_workload(6), set(multiprocessing.active_children())
    trainer = BatchedTrainer(workload, 1)
    (worker,) = set(multiprocessing.active_children()) - others
    worker.kill()
    worker.join()
    with pytest.raises(RunStoppedError, match=r"killed.* resume the run"):
        sum_of(trainer, make_cohort(workload.initial_vector(), 6, steps=4))
    trainer.close()


ENDLESS = """
import sys, threading, time
sys.path[:0] = {paths!r}
from helpers.small_tasks import tiny_workload
from helpers.trainers import make_cohort, sum_of
from lesson.learn.batched import BatchedTrainer
if __name__ == "__main__":
    workload = tiny_workload(6)
    trainer, base = BatchedTrainer(workload, 1), workload.initial_vector()
    sum_of(trainer, make_cohort(base, 1, steps=1))
    threading.Thread(target=sum_of, args=(trainer, make_cohort(base, 1, steps=10**9)), daemon=True).start()
    time.sleep(0.5)
    print("training", flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    """The worker holds the other end of the pipe, so the test reads to its end only if the worker ends, too."""
    script = tmp_path / "script.py"
    script.write_text(ENDLESS.format(paths=[str(Path(__file__).parents[1])]))
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"training\n"
            process.kill()
            process.communicate(timeout=60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (torch.OutOfMemoryError("CUDA out of memory.\nTried"), RunStoppedError, "not enough memory .*out of memory"),
        (MemoryError(), RunStoppedError, "not enough memory"),
        (RuntimeError("the memory of my strategy is empty"), RuntimeError, "^the memory of my strategy is empty$"),
    ],
)
def test_only_memory_errors_are_reported_as_such(
    error: Exception, kind: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=message):
        execute(run_settings(), tmp_path / "run", make=Mock(side_effect=error), **PARTS)


class Stored(int):
    """Stored as a tensor that exists only while it is pickled."""

    def __reduce__(self) -> Any:
        return Stored, (torch.tensor(float(self)),)


def test_temporary_tensors_are_not_mixed_up_in_pickles() -> None:
    assert pack(list(map(Stored, range(6)))).unpack() == list(range(6))

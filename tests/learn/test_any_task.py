"""Any data and any model: every trainer that can train a task agrees with the reference."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import lesson
from helpers.any_tasks import (
    COUPLED,
    INDEPENDENT,
    NUM_CLIENTS,
    Adapted,
    Mlp,
    TorchLstm,
    feature_task,
    regression_task,
    rmse,
    token_task,
    workload_of,
)
from helpers.model_servers import updates
from helpers.trainers import several, sum_of
from lesson import InputError, Settings, Task
from lesson.learn.batched import BatchedTrainer
from lesson.learn.build import build
from lesson.learn.cohort import Cohort
from lesson.learn.cpu import CpuBackend
from lesson.learn.evaluation import Evaluator
from lesson.learn.fused import FusedTrainer
from lesson.learn.local_optimizer import LocalTraining, take_step
from lesson.learn.losses import TaskLoss, correct
from lesson.learn.model_server import GlobalModel, schedule_factor
from lesson.learn.reference import ReferenceTrainer
from lesson.learn.remote import train_update
from lesson.learn.simulated_clients import SimulatedClients
from lesson.learn.template import Replica
from lesson.learn.threads import Threads
from lesson.learn.workload import Workload, chosen_clients
from lesson.settings.sections import TrainingSettings


def check_agreement(given: Tensor, expected: Tensor, base: Tensor, weight: float) -> None:
    moved = (expected - weight * base).norm()
    assert moved > 1e-3
    assert (given - expected).norm() < 1e-4 * moved


@pytest.mark.parametrize("name", INDEPENDENT)
def test_fused_agrees_with_the_reference(name: str) -> None:
    workload = workload_of(INDEPENDENT[name]())
    threads, reference = Threads(workload.template), ReferenceTrainer(workload)
    trainer = FusedTrainer(workload, threads)
    for cohort in several(workload):
        weight = float(cohort.weight.sum())
        check_agreement(sum_of(trainer, cohort), sum_of(reference, cohort), cohort.base, weight)
    threads.close()


@pytest.mark.parametrize("name", ["own loss", "regression"])
def test_fused_agrees_for_minibatches_of_unequal_size(name: str) -> None:
    workload = workload_of(INDEPENDENT[name](), split="quantity-skew", beta=0.5, batch_size=20)
    assert len(set(workload.holdings.num_samples.clip(max=20).tolist())) > 2
    threads, (cohort, *_) = Threads(workload.template), several(workload)
    given, expected = sum_of(FusedTrainer(workload, threads), cohort), sum_of(ReferenceTrainer(workload), cohort)
    check_agreement(given, expected, cohort.base, float(cohort.weight.sum()))
    threads.close()


def test_worker_processes_agree_with_the_reference_to_the_bit() -> None:
    """A task of a script or notebook, with closures that a worker cannot import: here a model with BatchNorm, dropout
    and a frozen layer, a loss and a preparation.
    """
    scale = 2.0

    class Local(Adapted):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.dropout = nn.BatchNorm1d(10), nn.Dropout(0.2)

        def forward(self, features: Tensor) -> Tensor:
            return super().forward(self.dropout(self.norm(features)))

    task = feature_task(
        Local,
        loss=lambda outputs, targets: functional.cross_entropy(outputs, targets) * scale,
        prepare=lambda features: features / scale,
    )
    workload = workload_of(task, local_optimizer="adamw", clip_norm=0.5)
    trainer, cohorts = BatchedTrainer(workload, 2), several(workload, steps=3)
    expected = ReferenceTrainer(workload).models(cohorts)
    try:
        for given, wanted, cohort in zip(trainer.models(cohorts), expected, cohorts, strict=True):
            assert torch.equal(given, wanted)
            assert not torch.equal(given[0], cohort.base)
    finally:
        trainer.close()


def chosen(workload: Workload, steps: int = 1, trainer: Any = "auto") -> tuple[str, list[str]]:
    """Return which trainer is chosen, and the remarks about it."""
    backend = CpuBackend(workload, 1)
    clients = SimulatedClients(workload, backend, trainer)
    asked = updates([0], [0], [1.0])
    asked.local_steps[:] = steps
    clients.trainer_for(asked)
    clients.close()
    backend.close()
    return clients.trainers[-1], clients.notes


def test_auto_picks_the_fastest_trainer_that_the_task_allows_and_says_why() -> None:
    assert chosen(workload_of(feature_task())) == ("fused", [])
    assert chosen(workload_of(feature_task(Adapted))) == ("fused", [])
    assert chosen(workload_of(feature_task()), steps=2) == ("batched", [])
    why = "trainer: batched, not fused: samples of a minibatch influence each other, as in BatchNorm"
    assert chosen(workload_of(COUPLED["batch norm"]())) == ("batched", [why])
    why = "trainer: batched, not fused: the model draws random numbers, such as dropout"
    assert chosen(workload_of(COUPLED["dropout"]())) == ("batched", [why])
    why = "trainer: batched, not fused: local training is not a step of plain SGD"
    assert chosen(workload_of(feature_task(), weight_decay=0.1)) == ("batched", [why])


class Later(Mlp):
    """The first sample of a minibatch influences the others, but not the other way round."""

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features + features[:1])


class Gated(Mlp):
    """Samples influence each other as soon as the gate, which starts at 0, has been trained."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features + self.gate * features.mean(0))


@pytest.mark.parametrize("model", [Later, Gated])
def test_samples_that_influence_each_other_are_found(model: type[nn.Module]) -> None:
    assert workload_of(feature_task(model)).template.traits.coupled


def test_auto_falls_back_to_the_reference_if_a_task_cannot_be_copied() -> None:
    class Stuck:
        def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return functional.cross_entropy(outputs, targets)

        def __reduce__(self) -> Any:
            raise TypeError("this loss stays here")

    name, (note,) = chosen(workload_of(feature_task(loss=Stuck())), steps=2)
    assert name == "reference"
    assert note.startswith("trainer: reference, not batched: task cannot be copied into other processes")
    assert "this loss stays here" in note


def test_a_trainer_that_cannot_train_the_task_is_an_error_if_it_was_asked_for() -> None:
    with pytest.raises(InputError, match="trainer must not be 'fused' here: samples of a minibatch influence"):
        chosen(workload_of(COUPLED["batch norm"]()), trainer="fused")


@pytest.mark.parametrize("trainable", [True, False])
def test_only_trainable_parameters_and_changing_buffers_are_exchanged(trainable: bool) -> None:
    class Net(Mlp):
        def __init__(self) -> None:
            super().__init__(norm=True)
            self.register_buffer("mask", torch.full((10,), -torch.inf))  # constant, and not finite
            self.hidden.requires_grad_(trainable)

    workload = workload_of(feature_task(Net))
    names = ["norm.weight", "norm.bias", "out.weight", "out.bias", "norm.running_mean", "norm.running_var"]
    hidden = ["hidden.weight", "hidden.bias"] if trainable else []
    assert list(workload.template.exchanged) == hidden + names
    assert workload.template.num_values == (176 if trainable else 0) + 32 + 51 + 32
    replica = workload.replica()
    shared = replica.model.hidden.weight.data_ptr() == workload.template.model.hidden.weight.data_ptr()
    assert shared is not trainable
    arrays = workload.template.named_arrays(workload.initial_vector())
    assert arrays["norm.running_var"].tolist() == [1.0] * 16


def test_running_means_of_batch_norm_are_averaged() -> None:
    """After one step, with momentum 0.1, each client's mean is a tenth of its minibatch's; the sum weighs them."""
    workload = workload_of(COUPLED["batch norm"]())
    (cohort, *_) = several(workload)
    cohort = cohort[2:4]
    given = sum_of(ReferenceTrainer(workload), cohort)
    mean = given[-32:-16]
    (samples,) = workload.minibatches(cohort, 1)
    hidden = workload.template.model.hidden
    expected = sum(
        weight * 0.1 * hidden(workload.task.train[0][rows]).mean(0)
        for rows, weight in zip(samples, cohort.weight.tolist(), strict=True)
    )
    assert torch.allclose(mean, expected, atol=1e-6)


def test_dropout_depends_on_seed_client_update_and_step_alone() -> None:
    workload = workload_of(COUPLED["dropout"]())
    trainer, (cohort, *_) = ReferenceTrainer(workload), several(workload, steps=2)
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    together = trainer.models([cohort])[0]
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(2)
    alone = trainer.models([cohort[3:4]])[0]
    assert torch.equal(alone[0], together[3])
    with workload.seeded(3, 0) as seed_step:
        assert seed_step is not None
        draws = []
        for step in (0, 1, 0):
            seed_step(step)
            draws.append(torch.rand(3))
    assert torch.equal(draws[0], draws[2])
    assert not torch.equal(draws[0], draws[1])
    with workload.seeded(4, 0) as other:
        assert other is not None
        other(0)
        assert not torch.equal(torch.rand(3), draws[0])


def test_random_numbers_of_prepare_are_seeded_like_those_of_the_model() -> None:
    workload = workload_of(feature_task(prepare=lambda inputs: inputs + torch.randn_like(inputs)))
    trainer, (cohort, *_) = ReferenceTrainer(workload), several(workload, steps=3)
    torch.manual_seed(1)
    first = trainer.models([cohort])[0]
    torch.manual_seed(2)
    assert torch.equal(trainer.models([cohort])[0], first)


def test_clients_that_train_in_threads_do_not_share_random_numbers() -> None:
    """As in a Flower app whose messages are handled by threads of one process."""
    workload = workload_of(COUPLED["dropout"]())
    base = workload.initial_vector().numpy()

    def train(client: int) -> np.ndarray:
        return train_update(workload, base.copy(), client=client, index=0, lr=0.1, local_steps=20)

    expected = list(map(train, range(8)))
    with ThreadPoolExecutor(4) as pool:
        for given, wanted in zip(pool.map(train, range(8)), expected, strict=True):
            assert np.array_equal(given, wanted)


def test_scores_of_a_model_that_is_random_in_evaluation_depend_on_the_seed_alone() -> None:
    class Noisy(Mlp):
        def forward(self, features: Tensor) -> Tensor:
            return super().forward(features + torch.randn_like(features))

    workload = workload_of(feature_task(Noisy))
    backend, vector = CpuBackend(workload, 2), workload.initial_vector()
    scores, judged = [], []
    for seed in (1, 2):
        torch.manual_seed(seed)
        scores.append(backend.begin_score(vector).result())
        judged.append(backend.judge_test(vector))
    backend.close()
    assert scores[0] == scores[1]
    assert torch.equal(*judged)
    assert not workload_of(COUPLED["dropout"]()).template.traits.random_scores


def test_a_run_is_not_resumed_with_a_model_of_another_size() -> None:
    settings = Settings(rounds=1, split="iid", device="cpu")
    begun, other = (build(settings, task=feature_task(partial(Mlp, size))) for size in (3, 4))
    with pytest.raises(InputError, match="task must have a model of 227 values, as this run began, got 244"):
        other.server.restore(begun.server.state())
    begun.close()
    other.close()


def test_counters_of_batch_norm_start_anew_for_each_client() -> None:
    """With momentum=None, running means weigh minibatches by their number, which must not leak between clients."""

    class Counting(Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(16, momentum=None)

    workload = workload_of(feature_task(Counting))
    trainer, (cohort, *_) = ReferenceTrainer(workload), several(workload)
    together = trainer.models([cohort])[0]
    assert torch.equal(ReferenceTrainer(workload).models([cohort[5:6]])[0][0], together[5])


class RunningMean(nn.Module):
    """Subtracts a running mean, which it replaces by a new tensor instead of changing it in place."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Mlp()
        self.register_buffer("mean", torch.zeros(10))

    def forward(self, features: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * features.mean(0)
        outputs: Tensor = self.net(features - self.mean)
        return outputs


def test_buffers_that_a_model_replaces_are_exchanged_and_start_anew_for_each_client() -> None:
    workload = workload_of(feature_task(RunningMean))
    replica, base = workload.replica(), workload.initial_vector()
    inputs = torch.ones(4, 10)
    for _ in range(2):
        replica.load(base)
        replica.outputs(inputs, training=True)
        assert torch.allclose(replica.vector()[-10:], torch.full((10,), 0.1))
    assert torch.equal(base, workload.initial_vector())


def test_buffers_that_a_model_changes_in_place_do_not_change_the_vector() -> None:
    workload = workload_of(COUPLED["batch norm"]())
    replica, base = workload.replica(), workload.initial_vector()
    replica.load(base)
    replica.outputs(torch.randn(4, 10), training=True)
    assert torch.equal(base, workload.initial_vector())
    assert not torch.equal(replica.vector(), base)


def test_a_model_may_create_buffers_when_it_is_called() -> None:
    class Cached(Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cached", None)

        def forward(self, features: Tensor) -> Tensor:
            if self.cached is None:
                self.cached = torch.ones(10)
            return super().forward(features * self.cached)

    workload = workload_of(feature_task(Cached))
    assert workload.template.traits.buffers == ()
    ReferenceTrainer(workload).sums(several(workload))


def test_all_modules_train_in_training_mode_before_and_after_an_evaluation() -> None:
    class Doubled(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            return 2 * values if self.training else values

    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(10, 3), Doubled())
        model[1].eval()
        return model

    workload = workload_of(feature_task(make))
    (cohort, *_), backend = several(workload), CpuBackend(workload, 1)
    trainer, expected = backend.trainer("fused"), sum_of(ReferenceTrainer(workload), cohort)
    before = sum_of(trainer, cohort)
    backend.begin_score(cohort.base)
    for given in (before, sum_of(trainer, cohort)):
        check_agreement(given, expected, cohort.base, float(cohort.weight.sum()))
    backend.close()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_fused_agrees_for_a_model_of_another_precision(dtype: torch.dtype) -> None:
    task = feature_task(lambda: Mlp().to(dtype), prepare=lambda inputs: inputs.to(dtype))
    workload = workload_of(task)
    (cohort, *_), backend = several(workload), CpuBackend(workload, 1)
    given, expected = sum_of(backend.trainer("fused"), cohort), sum_of(ReferenceTrainer(workload), cohort)
    moved = (expected - float(cohort.weight.sum()) * cohort.base).norm()
    assert (given - expected).norm() < (1e-4 if dtype == torch.float64 else 0.5) * moved
    backend.begin_score(cohort.base)
    backend.close()


def test_models_are_evaluated_in_evaluation_mode() -> None:
    workload = workload_of(COUPLED["dropout"]())
    evaluator = Evaluator(workload, CpuBackend(workload, 2))
    model = GlobalModel(workload.initial_vector(), "")
    first, again = evaluator.score(model), evaluator.score(model)
    plain = workload.template.copy_model().eval()
    inputs, targets = workload.task.test
    with torch.no_grad():
        expected = functional.cross_entropy(plain(inputs), targets)
    evaluator.close()
    assert first == again
    assert first.loss == pytest.approx(float(expected), abs=1e-6)


OPTIMIZERS: dict[str, tuple[dict[str, Any], Any]] = {
    "sgd": ({}, partial(torch.optim.SGD)),
    "momentum": ({"momentum": 0.9}, partial(torch.optim.SGD, momentum=0.9)),
    "nesterov": ({"momentum": 0.9, "nesterov": True}, partial(torch.optim.SGD, momentum=0.9, nesterov=True)),
    "decay": ({"weight_decay": 0.1, "momentum": 0.5}, partial(torch.optim.SGD, weight_decay=0.1, momentum=0.5)),
    "adamw": (
        {"local_optimizer": "adamw", "weight_decay": 0.1, "adam_beta2": 0.9},
        partial(torch.optim.AdamW, weight_decay=0.1, betas=(0.9, 0.9)),
    ),
}


@pytest.mark.parametrize("clip_norm", [np.inf, 0.3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_local_optimizers_are_those_of_torch(name: str, clip_norm: float) -> None:
    changes, make = OPTIMIZERS[name]
    workload = workload_of(feature_task(), **changes, clip_norm=clip_norm)
    replica, plain = workload.replica(), workload.template.copy_model()
    base = workload.initial_vector()
    replica.load(base.clone())
    local = LocalTraining(workload.training, replica, base)
    optimizer = make(plain.parameters(), lr=0.05)
    for rows in torch.arange(40).split(10):
        inputs, targets = (part[rows] for part in workload.task.train)
        local.descend(functional.cross_entropy(replica.outputs(inputs, training=True), targets), 0.05)
        optimizer.zero_grad()
        functional.cross_entropy(plain(inputs), targets).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), clip_norm)
        optimizer.step()
    expected = nn.utils.parameters_to_vector(plain.parameters()).detach()
    assert (expected - base).norm() > 0.01
    assert torch.allclose(replica.vector(), expected, atol=1e-6)


def test_steps_of_adamw_do_not_depend_on_how_they_are_counted() -> None:
    training, results = TrainingSettings(local_optimizer="adamw"), []
    for number in (1, torch.tensor(1)):
        parameter, moments = torch.zeros(4), {name: torch.zeros(4) for name in ("m", "v")}
        take_step(training, parameter, torch.full((4,), 1e-3), moments, 0.1, number)
        results.append(parameter)
    assert torch.allclose(*results, rtol=1e-7, atol=0)


@pytest.mark.parametrize("trainer", ["reference", "batched"])
def test_a_minibatch_that_a_loss_refuses_is_a_one_line_error(trainer: Any, tmp_path: Path) -> None:
    """The second minibatch of an epoch over 6 samples has a single one."""

    def picky(outputs: Tensor, targets: Tensor) -> Tensor:
        if len(targets) == 1:
            raise ValueError("too few")
        return functional.cross_entropy(outputs, targets)

    task = feature_task(loss=picky, clients=[range(6), range(6, 12)])
    with pytest.raises(
        lesson.RunStoppedError, match="client 0 cannot train on a minibatch of size 1: ValueError: too few"
    ):
        lesson.run("fedavg", out=tmp_path, task=task, trainer=trainer, batch_size=5, local_epochs=1, rounds=1)


def test_schedules_by_hand() -> None:
    """Rounds count from 1: local trainings of the first round have the full step size."""
    rounds, times = np.array([1, 6, 11, 21]), np.array([0.0, 50.0, 100.0, 400.0])

    def factors(**changes: Any) -> list[float]:
        training = TrainingSettings(schedule_period=changes.pop("period"), schedule_factor=0.5, **changes)
        return np.round(np.broadcast_to(schedule_factor(training, rounds, times), 4), 6).tolist()

    assert factors(schedule="step", period=10.0) == [1.0, 1.0, 0.5, 0.25]
    assert factors(schedule="exponential", period=10.0) == [1.0, round(0.5**0.5, 6), 0.5, 0.25]
    assert factors(schedule="cosine", period=10.0) == [1.0, 0.75, 0.5, 0.5]
    assert factors(schedule="step", schedule_over="seconds", period=200.0) == [1.0, 1.0, 1.0, 0.25]
    assert factors(schedule="constant", period=10.0) == [1.0] * 4


def test_padding_does_not_count_for_accuracy() -> None:
    outputs = functional.one_hot(torch.tensor([[1, 2, 0, 0], [1, 1, 1, 1]]), 3).transpose(1, 2).float()
    targets = torch.tensor([[1, 0, -100, -100], [-100, -100, -100, -100]])
    assert correct(outputs, targets).tolist() == [0.5, 0.0]


def test_the_loss_of_a_model_with_several_outputs_counts_samples_not_outputs() -> None:
    outputs, targets = {"first": torch.ones(10, 1), "second": torch.zeros(10, 1)}, {"first": torch.zeros(10, 1)}
    loss = TaskLoss(lambda given, wanted: (given["first"] - wanted["first"]).square().mean(), targets)
    assert float(loss.total(outputs, targets)) == 10


def test_metrics_of_a_regression_are_those_of_the_whole_test_set() -> None:
    task = regression_task(metrics=rmse, metric="rmse", higher_is_better=False, target_scores=[1.0, 0.5])
    workload = workload_of(task)
    evaluator = Evaluator(workload, CpuBackend(workload, 2))
    score = evaluator.score(GlobalModel(workload.initial_vector(), ""))
    plain = workload.template.copy_model().eval()
    errors = (plain(task.test[0]) - task.test[1]).detach()
    evaluator.close()
    assert score.values == {
        "rmse": pytest.approx(float(errors.square().mean().sqrt()), rel=1e-6),
        "largest_error": pytest.approx(float(errors.abs().max()), rel=1e-6),
    }
    assert score.loss == pytest.approx(float(errors.square().mean()), rel=1e-6)
    assert (evaluator.metric.name, evaluator.metric.higher_is_better) == ("rmse", False)
    assert evaluator.metric.targets == (1.0, 0.5)
    assert evaluator.num_classes is None


def test_a_run_on_float_features_with_batch_norm_dropout_and_given_clients(tmp_path: Path) -> None:
    """The attempt of a new user that used to be turned away four times."""
    parts = [list(range(20 * client, 20 * client + 5 + client)) for client in range(7)]
    task = feature_task(partial(Mlp, norm=True, dropout=0.2), clients=parts)
    run = lesson.run(task=task, out=tmp_path / "run", time_budget_s=200, batch_size=4)
    assert run.summary["accuracy"] > 1 / 3
    assert run.settings.fleet.num_clients == 7
    assert run.summary["notes"][0].startswith("trainer: batched, not fused: the model draws random numbers")
    assert run.summary["wall_trainer"] == "batched"


def test_clients_of_a_task_are_drawn_from_the_seed_if_there_are_more_than_the_fleet_has() -> None:
    parts = [np.array([place]) for place in range(20)]
    held = {seed: [int(part[0]) for part in chosen_clients(parts, 6, seed)] for seed in (0, 1)}
    assert held[0] != held[1]
    assert held[0] == sorted(set(held[0]))
    with pytest.raises(InputError, match="num_clients must be at most 20, the number of clients of the task, got 21"):
        chosen_clients(parts, 21, 0)


def test_an_upload_may_have_the_actual_size_of_the_model() -> None:
    """An MLP of 10·16 + 16 + 16·3 + 3 = 227 parameters: 7,264 bits, 908 bytes."""
    settings = Settings(rounds=1, model_bits="actual", split="iid", num_clients=8, batch_size=5, device="cpu")
    run = build(settings, task=feature_task())
    assert run.loop.fleet.model_bits == 7264
    record = run.loop.step(1e9)
    run.close()
    assert record is not None
    assert record.bytes_up == 908 * record.uploads


def test_torch_lstm_and_sequences() -> None:
    workload = workload_of(token_task(TorchLstm))
    assert chosen(workload) == ("fused", [])
    evaluator = Evaluator(workload, CpuBackend(workload, 1))
    score = evaluator.score(GlobalModel(workload.initial_vector(), ""))
    plain = workload.template.copy_model().eval()
    inputs, targets = workload.task.test
    right = (plain(inputs).argmax(1) == targets).float().mean()
    evaluator.close()
    assert score.values["accuracy"] == pytest.approx(float(right), abs=1e-6)
    assert workload.task.num_classes is None


def test_replicas_of_a_model_with_tied_weights_stay_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.out = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
            self.out.weight = self.embedding.weight

        def forward(self, tokens: Tensor) -> Tensor:
            outputs: Tensor = self.out(self.embedding(tokens)).transpose(1, 2)
            return outputs

    workload = workload_of(token_task(Tied))
    assert workload.template.num_values == 28
    replica = Replica(workload.template)
    replica.load(torch.arange(28.0))
    assert torch.equal(replica.model.out.weight, replica.model.embedding.weight)
    assert replica.model.out.weight[1, 0] == 4.0


BAD: list[tuple[dict[str, Any], str]] = [
    (
        {"train": (np.ones((5, 2)), np.zeros(4, int))},
        "train inputs and targets must have the same number of samples, got 5 and 4",
    ),
    ({"train": (np.ones((0, 10)), np.zeros(0, int))}, "train must have at least one sample, got none"),
    ({"train": np.ones(3)}, r"train must be a pair \(inputs, targets\), got ndarray"),
    (
        {"train": (np.array(["a", "b"]), np.zeros(2, int))},
        "train inputs must be an array of numbers of one shape, got values of type <U1",
    ),
    ({"train": ([[1, 2], [3]], [0, 1])}, "one shape: got a list with entries of different lengths; pad them"),
    ({"test": (np.ones((4, 9)), np.zeros(4, int))}, "train and test inputs must have the same type and shape"),
    ({"train": (np.ones((3, 10)), np.ones(3))}, "train and test targets must have the same type and shape"),
    ({"model": Mlp()}, r"model must be a function or class that returns a new nn.Module, got a module \(Mlp\)"),
    ({"model": 3}, "model must be a function or class that returns a new nn.Module, got 3"),
    ({"clients": [[0, 1], []]}, r"clients\[1\] must have at least one sample, got none; leave this client out"),
    ({"clients": [[0, 1], [2, 160]]}, r"clients\[1\] must have indices from 0 to 159, got 160"),
    ({"clients": [[0, -1]]}, r"clients\[0\] must have indices from 0 to 159, got -1"),
    ({"clients": [[0.5]]}, r"clients\[0\] must be a list of indices of training samples, got float64"),
    ({"clients": []}, "clients must have at least one client, got none"),
    ({"metric": "f1"}, "metric must be 'accuracy' unless metrics is given, got 'f1'"),
    ({"target_scores": ["high"]}, "target_scores must be a list of numbers"),
    ({"loss": 3}, "loss must be a function, got 3"),
    ({"name": ""}, "name must be text, got ''"),
]


@pytest.mark.parametrize(("changes", "message"), BAD)
def test_bad_tasks_are_one_line_errors(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        feature_task(**changes)
    assert "\n" not in str(raised.value)


def raises(*_: Any) -> Any:
    raise KeyError("broken")


UNFIT: list[tuple[Any, str]] = [
    (
        lambda: feature_task(loss=partial(functional.cross_entropy, reduction="none")),
        "loss must return a scalar tensor",
    ),
    (lambda: feature_task(loss=lambda *_: 3.0), "loss must return a scalar tensor, got 3.0"),
    (lambda: feature_task(loss=lambda *_: torch.ones(())), "loss must depend on the model's parameters"),
    (lambda: feature_task(loss=raises), "loss cannot compare outputs float32 .* and targets int64 .*: KeyError"),
    (lambda: feature_task(partial(Mlp, 2)), "model must return at least 3 logits, as targets go up to 2, got 2"),
    (lambda: feature_task(lambda: nn.Flatten(0)), "model must have trainable parameters, got none"),
    (lambda: feature_task(lambda: nn.Linear(9, 3)), r"model cannot process inputs float32 \(4, 10\): RuntimeError"),
    (lambda: feature_task(lambda: nn.Linear(10, 3, dtype=torch.complex64)), "must be real floating-point numbers"),
    (lambda: feature_task(lambda: nn.LazyLinear(3)), "model must not have lazy layers, such as the one of 'weight'"),
    (lambda: feature_task(lambda: "net"), "that returns a new nn.Module, got str"),
    (lambda: feature_task(raises), "model cannot be created: KeyError"),
    (lambda: feature_task(prepare=raises), "prepare cannot process inputs"),
    (lambda: feature_task(class_names=["a"]), "class_names must have 3 names, one per logit, got 1"),
    (lambda: token_task(lambda: nn.Embedding(7, 7)), r"model must return logits of shape \(4, classes, 6\)"),
]


@pytest.mark.parametrize(("make", "message"), UNFIT)
def test_models_and_losses_that_do_not_fit_are_one_line_errors(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        workload_of(make())
    assert "\n" not in str(raised.value)


def test_targets_that_are_not_classes_need_a_loss_and_another_split() -> None:
    with pytest.raises(InputError, match=r"loss must be given, such as .*: cross-entropy, the default, needs integer"):
        regression_task(loss=None)
    with pytest.raises(InputError, match="split must be 'iid' or 'quantity-skew', or the task must list the samples"):
        workload_of(regression_task(), split="dirichlet-per-class")


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (raises, "metrics cannot be computed: KeyError"),
        (lambda *_: {}, "metrics must return from 1 to 20 numbers by name, got 0"),
        (lambda *_: {"f1": "high"}, "metrics must return a number for 'f1', got str"),
        (lambda *_: {"f1": 0.5}, "metric must be one of f1, got 'f2'"),
        (lambda *_: {"loss": 0.5}, "a metric must not be called 'loss'"),
    ],
)
def test_bad_metrics_are_errors_before_training(metrics: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(Settings(rounds=1, split="iid", device="cpu"), task=feature_task(metrics=metrics, metric="f2"))


def test_metrics_of_a_model_whose_outputs_are_not_one_row_per_sample_are_a_one_line_error() -> None:
    class WithPenalty(Mlp):
        def forward(self, features: Tensor) -> Any:
            outputs = super().forward(features)
            return outputs, outputs.square().mean()

    task = feature_task(
        WithPenalty,
        loss=lambda outputs, targets: functional.cross_entropy(outputs[0], targets) + outputs[1],
        metrics=lambda outputs, targets: float((outputs[0].argmax(1) == targets).float().mean()),
    )
    with pytest.raises(InputError, match=r"tensors with one row per sample, .* got float32"):
        build(Settings(rounds=1, split="iid", device="cpu"), task=task)


def test_arrays_are_converted_to_what_models_expect() -> None:
    inputs = np.ones((4, 3), dtype=">f8")
    inputs.flags.writeable = False
    task = Task(train=(inputs, [0, 1, 0, 1]), test=(inputs, np.zeros(4, np.uint8)), model=lambda: nn.Linear(3, 2))
    assert task.train[0].dtype == torch.float32
    assert task.train[1].dtype == torch.int64
    tokens = Task(
        train=(np.ones((4, 3), np.int16), np.zeros(4, np.uint16)), test=(torch.ones(2, 3).long(), [0, 1]), model=Mlp
    )
    assert tokens.train[0].dtype == torch.int64
    assert (
        Task(train=(np.ones((1, 2), np.uint8), [0]), test=(np.ones((1, 2), np.uint8), [0]), model=Mlp).train[0].dtype
        == torch.uint8
    )


@pytest.mark.parametrize("name", ["batch norm", "dropout"])
def test_a_minibatch_of_one_sample_is_skipped_if_the_model_refuses_it(name: str) -> None:
    """Eleven samples in minibatches of five: the last sample of the epoch is alone."""
    make = partial(Mlp, norm=True, dropout=0.3 if name == "dropout" else 0.0)
    parts = [np.arange(11 * client, 11 * client + 11) for client in range(NUM_CLIENTS)]
    workload = workload_of(feature_task(make, clients=parts), split="natural", local_epochs=1)
    (cohort, *_) = several(workload, steps=3)
    three, two = (ReferenceTrainer(workload).models([cohort_of(cohort, steps)])[0] for steps in (3, 2))
    assert torch.equal(three, two)
    with pytest.raises(InputError, match="batch_size must be >= 2 for this model, got 1: it cannot train on a single"):
        workload_of(feature_task(make), batch_size=1)
    with pytest.raises(InputError, match="every client must have at least 2 samples for this model, but 1 have one"):
        workload_of(feature_task(make, clients=[[0], *parts[1:]]), split="natural")


def cohort_of(cohort: Cohort, steps: int) -> Cohort:
    return replace(cohort, local_steps=np.full(len(cohort), steps), first=np.zeros(len(cohort), dtype=np.int64))


def test_outputs_that_would_be_broadcast_against_the_targets_are_an_error() -> None:
    """Shapes (n, 1) and (n,) make torch compare every output with every target, and only warn."""
    with pytest.raises(InputError, match=r"must have the same shape for this loss, got outputs float32 \(4, 1\)"):
        workload_of(regression_task(train=(np.ones((9, 10)), np.ones(9)), test=(np.ones((9, 10)), np.ones(9))))

"""Any data and any model: what clients exchange, random numbers, metrics, and errors in a task."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import lesson
from helpers.any_tasks import COUPLED, NUM_CLIENTS, Mlp, TorchLstm, feature_task, regression_task, rmse, token_task
from helpers.any_tasks import workload_of as make
from helpers.runs import settings
from helpers.trainers import make_cohort
from lesson import InputError, Settings, Task
from lesson.core.errors import RunStoppedError
from lesson.learn.cpu import CpuBackend
from lesson.learn.losses import TaskLoss, correct
from lesson.learn.reference import ReferenceTrainer
from lesson.learn.remote import train_update
from lesson.learn.workload import Workload, chosen_clients
from lesson.runs.execute import execute
from lesson.runs.resolve import resolve
from lesson.runs.summary import read_metrics

CPU = Settings(rounds=1, split="iid", num_clients=8, batch_size=5, device="cpu")


def train(workload: Workload, client: int, **changes: Any) -> np.ndarray:
    """Return the model that a client trains from the initial one."""
    base = workload.initial_vector().numpy()
    return train_update(workload, base, client=client, **{"index": 0, "lr": 0.1} | changes)


def score(workload: Workload) -> Any:
    with closing(CpuBackend(workload, 2)) as backend:
        return backend.begin_score(workload.initial_vector())()


def plain_outputs(workload: Workload) -> Tensor:
    """Return the outputs of the initial model for the test data, in plain torch."""
    with torch.no_grad():
        outputs: Tensor = workload.template.copy_model().eval()(workload.task.test[0])
        return outputs


def test_run_on_float_features(tmp_path: Path) -> None:
    parts = [list(range(20 * client, 20 * client + 5 + client)) for client in range(7)]
    task = feature_task(partial(Mlp, norm=True, dropout=0.2), clients=parts)
    run = lesson.run(task=task, out=tmp_path / "run", time_budget_s=200, batch_size=4, device="cpu")
    assert run.summary["accuracy"] > 1 / 3
    assert run.settings.fleet.num_clients == 7
    assert "trainer: batched, not fused" in run.summary["notes"][0]
    assert run.summary["wall_trainer"] == "batched"


# What clients exchange


@pytest.mark.parametrize("trainable", [True, False])
def test_only_trainable_parameters_and_changing_buffers_are_exchanged(trainable: bool) -> None:
    class Net(Mlp):
        def __init__(self) -> None:
            super().__init__(norm=True)
            self.register_buffer("mask", torch.full((10,), -torch.inf))  # constant, and not finite
            self.hidden.requires_grad_(trainable)

    template = make(feature_task(Net)).template
    names = ["norm.weight", "norm.bias", "out.weight", "out.bias", "norm.running_mean", "norm.running_var"]
    hidden = ["hidden.weight", "hidden.bias"] if trainable else []
    arrays = template.named_arrays(template.initial_vector())
    assert list(arrays) == hidden + names
    assert sum(one.size for one in arrays.values()) == template.num_values
    assert arrays["norm.running_var"].tolist() == [1.0] * 16
    shared = template.copy_model().hidden.weight.data_ptr() == template.model.hidden.weight.data_ptr()  # type: ignore[operator, union-attr]
    assert shared is not trainable


def test_running_means_of_batch_norm_are_averaged() -> None:
    """After one step, with momentum 0.1, each client's mean is a tenth of its minibatch's; the sum weighs them."""
    workload = make(COUPLED["batch norm"]())
    cohort = make_cohort(workload.initial_vector(), 8)[1:3]
    (given,), (samples,) = ReferenceTrainer(workload).sums([cohort]), workload.minibatches(cohort, 1)
    hidden = workload.template.model.hidden
    expected = sum(
        weight * 0.1 * hidden(workload.task.train[0][rows]).mean(0)  # type: ignore[operator]
        for rows, weight in zip(samples, cohort.weight.tolist(), strict=True)
    )
    assert torch.allclose(given[-32:-16], expected, atol=1e-6)


def counting() -> nn.Module:
    """With momentum=None, running means weigh minibatches by their number."""
    return nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16, momentum=None), nn.Linear(16, 3))


class RunningMean(nn.Module):
    """Replaces its buffer by a new tensor instead of changing it in place."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Mlp()
        self.register_buffer("mean", torch.zeros(10))

    def forward(self, features: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * features.mean(0)
        outputs: Tensor = self.net(features - self.mean)
        return outputs


@pytest.mark.parametrize("model", [counting, RunningMean, partial(Mlp, norm=True, dropout=0.3)])
def test_no_state_leaks_between_clients(model: Any) -> None:
    workload = make(feature_task(model))
    cohort, base = make_cohort(workload.initial_vector(), 8, steps=2), workload.initial_vector()
    together, alone = (ReferenceTrainer(workload).models([one])[0] for one in (cohort, cohort[5:6]))
    assert torch.equal(alone[0], together[5])
    assert torch.equal(cohort.base, base)
    assert not torch.equal(together[5], base)


def test_replaced_buffer_is_exchanged() -> None:
    workload = make(feature_task(RunningMean))
    cohort = make_cohort(workload.initial_vector(), 8)
    (samples,) = workload.minibatches(cohort, 1)
    expected = 0.1 * workload.task.train[0][samples[1]].mean(0)
    assert torch.allclose(ReferenceTrainer(workload).models([cohort])[0][1, -10:], expected, atol=1e-6)


def test_tied_weights_stay_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.out = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
            self.out.weight = self.embedding.weight

        def forward(self, tokens: Tensor) -> Tensor:
            outputs: Tensor = self.out(self.embedding(tokens)).transpose(1, 2)
            return outputs

    workload = make(token_task(Tied))
    assert workload.template.num_values == 28
    replica = workload.replica()
    replica.load(torch.arange(28.0))
    assert replica.model.out.weight[1, 0] == replica.model.embedding.weight[1, 0] == 4.0


def test_upload_of_the_actual_model_size() -> None:
    """An MLP of 10·16 + 16 + 16·3 + 3 = 227 parameters: 7,264 bits, 908 bytes."""
    run = resolve(CPU.with_changes(model_bits="actual"), feature_task()).build()
    record = run.pipeline.step(1e9)
    run.pipeline.close()
    assert run.pipeline.loop.fleet.model_bits == 7264
    assert record is not None
    assert record.bytes_up == 908 * record.uploads


def test_run_is_not_resumed_with_a_model_of_another_size() -> None:
    begun, other = (resolve(CPU, feature_task(partial(Mlp, size))).build() for size in (3, 4))
    with pytest.raises(InputError, match=r"227 values.* got 244"):
        other.pipeline.lane.restore(begun.pipeline.lane.state())
    begun.pipeline.close()
    other.pipeline.close()


# Samples that influence each other


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
def test_samples_that_influence_each_other_are_detected(model: type[nn.Module], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="influence each other"):
        lesson.run("fedavg", task=feature_task(model), out=tmp_path / "run", settings=CPU, trainer="fused")


def test_minibatches_too_small_for_the_model_are_skipped() -> None:
    """Eleven samples in minibatches of five: the last sample of the epoch is alone."""
    model = partial(Mlp, norm=True, dropout=0.3)
    parts = [np.arange(11 * client, 11 * client + 11) for client in range(NUM_CLIENTS)]
    workload = make(feature_task(model, clients=parts), split="natural", local_epochs=1)
    assert np.array_equal(train(workload, 3, local_steps=3), train(workload, 3, local_steps=2))
    with pytest.raises(InputError, match="batch_size must be >= 2"):
        make(feature_task(model), batch_size=1)


# Random numbers


@pytest.mark.parametrize(
    "task", [COUPLED["dropout"], lambda: feature_task(prepare=lambda inputs: inputs + torch.randn_like(inputs))]
)
def test_random_numbers_depend_on_seed_client_update_and_step_alone(task: Any) -> None:
    """Also in threads of one process, as in a Flower app."""
    workload = make(task())
    torch.manual_seed(1)
    expected = [train(workload, client, local_steps=20) for client in range(6)]
    state = torch.random.get_rng_state()
    with ThreadPoolExecutor(3) as pool:
        for given, wanted in zip(pool.map(partial(train, workload, local_steps=20), range(6)), expected, strict=True):
            assert np.array_equal(given, wanted)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_every_client_update_and_step_draws_its_own_random_numbers() -> None:
    """The loss is the mean of noise times a single parameter, so that a step moves it by the mean of the noise."""

    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, features: Tensor) -> Tensor:
            return self.scale * torch.rand(len(features), 1)

    workload = make(feature_task(Noisy, loss=lambda outputs, targets: outputs[:, 0], metrics=lambda *_: 1.0))
    one_step = [float(train(workload, client, index=index)[0]) for client, index in ((0, 0), (0, 1), (1, 0))]
    assert len(set(one_step)) == 3
    two_steps = float(train(workload, 0, local_steps=2)[0])
    assert two_steps - one_step[0] != pytest.approx(one_step[0] - 1.0), "the second step drew the same numbers"


def test_scores_of_a_random_model_depend_on_the_seed_alone() -> None:
    class Noisy(Mlp):
        def forward(self, features: Tensor) -> Tensor:
            return super().forward(features + torch.randn_like(features))

    workload = make(feature_task(Noisy))
    assert score(workload) == score(workload)


# Evaluation


def test_models_use_training_and_evaluation_mode() -> None:
    class Doubled(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            return 2 * values if self.training else values

    def model() -> nn.Module:
        made = nn.Sequential(nn.Linear(10, 3), Doubled())
        made[1].eval()
        return made

    workload = make(feature_task(model))
    backend, cohort = CpuBackend(workload, 1), make_cohort(workload.initial_vector(), 8)
    trainer, (expected,) = backend.trainer("fused"), ReferenceTrainer(workload).sums([cohort])
    for _ in range(2):
        (given,) = trainer.sums([cohort])
        assert torch.allclose(given, expected, atol=1e-6)
        loss = backend.begin_score(cohort.base)().loss
    backend.close()
    assert loss == pytest.approx(float(functional.cross_entropy(plain_outputs(workload), workload.task.test[1])))


def test_metrics_that_fail_in_the_middle_stop_the_run_after_the_lines_before(tmp_path: Path) -> None:
    """They are tried once when the run is built, then after every fifth round: the third time, in round 10."""
    calls = itertools.count(1)

    def luck(*_: Tensor) -> float:
        if next(calls) == 3:
            raise ValueError("no luck")
        return 1.0

    chosen = settings(eval_every_s=100.0)
    with pytest.raises(RunStoppedError, match=r"metrics cannot be computed: .*no luck") as caught:
        execute(chosen, tmp_path / "run", task=feature_task(metrics=luck), num_threads=1)
    assert isinstance(caught.value.__cause__, ValueError)
    assert len(read_metrics(tmp_path / "run" / "metrics.jsonl")) == 9


def test_metrics_of_a_regression_are_those_of_the_whole_test_set() -> None:
    task = regression_task(metrics=rmse, metric="rmse", higher_is_better=False, target_scores=[1.0, 0.5])
    workload = make(task)
    errors = plain_outputs(workload) - task.test[1]
    found = score(workload)
    assert found.values == {
        "rmse": pytest.approx(float(errors.square().mean().sqrt()), rel=1e-6),
        "largest_error": pytest.approx(float(errors.abs().max()), rel=1e-6),
    }
    assert found.loss == pytest.approx(float(errors.square().mean()), rel=1e-6)
    run = resolve(CPU, task).build()
    run.pipeline.close()
    assert (run.metric.name, run.metric.higher_is_better, run.metric.targets) == ("rmse", False, (1.0, 0.5))
    assert run.evaluator.num_classes is None


def test_sequences_and_torchs_own_lstm(tmp_path: Path) -> None:
    workload = make(token_task(TorchLstm))
    right = (plain_outputs(workload).argmax(1) == workload.task.test[1]).float().mean()
    assert score(workload).values["accuracy"] == pytest.approx(float(right), abs=1e-6)
    assert workload.task.num_classes is None
    run = lesson.run("fedavg", task=workload.task, out=tmp_path / "run", settings=CPU)
    assert run.summary["wall_trainer"] == "fused"


def test_padding_does_not_count() -> None:
    outputs = functional.one_hot(torch.tensor([[1, 2, 0, 0], [1, 1, 1, 1]]), 3).transpose(1, 2).float()
    targets = torch.tensor([[1, 0, -100, -100], [-100, -100, -100, -100]])
    assert correct(outputs, targets).tolist() == [0.5, 0.0]
    loss, expected = TaskLoss(None, targets), float(functional.cross_entropy(outputs[0, :, :2].T, targets[0, :2]))
    assert loss.each(outputs, targets).tolist() == [pytest.approx(expected), 0.0]
    assert float(loss.mean(outputs, targets)) == pytest.approx(expected / 2)
    assert float(loss.total(outputs, targets)) == pytest.approx(expected)


def test_loss_of_a_minibatch_is_the_mean_of_its_samples() -> None:
    outputs, targets = torch.arange(12.0).reshape(3, 4), torch.ones(3, 4)
    for given in (functional.mse_loss, nn.MSELoss(reduction="none"), lambda *both: (both[0] - both[1]).square()):
        loss = TaskLoss(given, targets)
        assert torch.allclose(loss.each(outputs, targets), (outputs - 1).square().mean(1))
        assert torch.allclose(loss.mean(outputs, targets), (outputs - 1).square().mean())
        assert torch.allclose(loss.total(outputs, targets), (outputs - 1).square().mean(1).sum())


# Data


def test_small_fleet_draws_from_the_clients_of_the_task() -> None:
    parts = [np.array([place]) for place in range(20)]
    held = {seed: [int(part[0]) for part in chosen_clients(parts, 6, seed)] for seed in (0, 1)}
    assert held[0] != held[1]
    assert held[0] == sorted(set(held[0]))
    with pytest.raises(InputError, match="num_clients must be at most 20"):
        chosen_clients(parts, 21, 0)


def test_arrays_are_converted_for_the_model() -> None:
    def dtypes(inputs: Any, targets: Any) -> tuple[torch.dtype, torch.dtype]:
        train = Task(train=(inputs, targets), test=(inputs, targets), model=Mlp).train
        return train[0].dtype, train[1].dtype

    frozen = np.ones((2, 3), dtype=">f8")
    frozen.flags.writeable = False
    assert dtypes(frozen, [0, 1]) == (torch.float32, torch.int64)
    assert dtypes(np.ones((2, 3), np.int16), np.zeros(2, np.uint16)) == (torch.int64, torch.int64)
    assert dtypes(torch.ones(2, 3).half(), np.zeros(2, np.uint8)) == (torch.float16, torch.int64)


# Errors: one line each, which names what is wrong


def raises(*_: Any) -> Any:
    raise KeyError("broken")


def given_metrics(metrics: Any, metric: str = "f2") -> Any:
    return lambda: resolve(CPU, feature_task(metrics=metrics, metric=metric)).build()


BAD: dict[str, Any] = {
    "train inputs and targets .* 5 and 4": lambda: feature_task(train=(np.ones((5, 2)), np.zeros(4, int))),
    "train must have at least one": lambda: feature_task(train=(np.ones((0, 10)), np.zeros(0, int))),
    "train inputs .*; pad them": lambda: feature_task(train=([[1, 2], [3]], [0, 1])),
    "train and test inputs": lambda: feature_task(test=(np.ones((4, 9)), np.zeros(4, int))),
    "train and test targets": lambda: feature_task(train=(np.ones((3, 10)), np.ones(3))),
    "model must be .* a module": lambda: feature_task(Mlp()),  # type: ignore[arg-type]
    r"clients\[1\] must have at least one": lambda: feature_task(clients=[[0, 1], []]),
    r"clients\[1\] .* got 160": lambda: feature_task(clients=[[0, 1], [2, 160]]),
    r"clients\[0\] .* got -1": lambda: feature_task(clients=[[0, -1]]),
    "metric must be 'accuracy'": lambda: feature_task(metric="f1"),
    "loss must be given": lambda: regression_task(loss=None),
    "split must be": lambda: make(regression_task(), split="dirichlet-per-class"),
    "loss must return one value per sample, got 3.0": lambda: make(feature_task(loss=lambda *_: 3.0)),
    "loss must .* got float32 .* use reduction='none'": lambda: make(feature_task(loss=nn.CrossEntropyLoss())),
    "loss must depend": lambda: make(feature_task(loss=lambda _, targets: torch.ones(len(targets)))),
    "loss cannot compare .* KeyError": lambda: make(feature_task(loss=raises)),
    "at least 3 logits": lambda: make(feature_task(partial(Mlp, 2))),
    "model must have trainable": lambda: make(feature_task(lambda: nn.Flatten(0))),
    "model cannot process": lambda: make(feature_task(lambda: nn.Linear(9, 3))),
    "lazy layers": lambda: make(feature_task(lambda: nn.LazyLinear(3))),
    "returns a new nn.Module, got str": lambda: make(feature_task(lambda: "net")),  # type: ignore[arg-type, return-value]
    "model cannot be created: KeyError": lambda: make(feature_task(raises)),
    "prepare cannot process": lambda: make(feature_task(prepare=raises)),
    "class_names must have 3": lambda: make(feature_task(class_names=["a"])),
    "logits of shape": lambda: make(token_task(lambda: nn.Embedding(7, 7))),
    "metrics cannot be computed: KeyError": given_metrics(raises),
    "one of f1": given_metrics(lambda *_: {"f1": 0.5}),
    "not be called 'loss'": given_metrics(lambda *_: {"loss": 0.5}),
}


@pytest.mark.parametrize("message", BAD)
def test_errors_in_a_task(message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        BAD[message]()
    assert "\n" not in str(raised.value)

"""The networks of the built-in tasks compute what they should, for one client and for many at once."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from lesson.learn.networks import (
    CharLstm,
    CharTransformer,
    FemnistNet,
    GroupNormResNet,
    LogisticRegression,
    Lstm,
)
from lesson.learn.task import ModelFactory, Task
from lesson.learn.template import Template, Traits

NUM_TOKENS = 80


@dataclass(frozen=True)
class Case:
    factory: ModelFactory
    num_parameters: int
    input_shape: tuple[int, ...]
    num_classes: int = 10
    is_language: bool = False

    def inputs(self, num: int) -> Tensor:
        if self.is_language:
            return torch.randint(self.num_classes, (num, *self.input_shape))
        return torch.randn(num, *self.input_shape)

    def targets(self, num: int) -> Tensor:
        return torch.randint(self.num_classes, (num, *self.input_shape) if self.is_language else (num,))

    def task(self) -> Task:
        samples = self.inputs(4), self.targets(4)
        return Task(train=samples, test=samples, model=self.factory)

    def template(self, seed: int) -> Template:
        return Template(self.task(), seed)


CASES = {
    "logistic regression": Case(lambda: LogisticRegression(60, 10), 610, (60,)),
    "femnist": Case(FemnistNet, 6_603_710, (1, 28, 28), 62),
    "resnet-8": Case(GroupNormResNet, 78_042, (3, 32, 32)),
    "resnet-8, 100 classes": Case(lambda: GroupNormResNet(100), 83_892, (3, 32, 32), 100),
    "resnet-20": Case(lambda: GroupNormResNet(blocks=3), 272_474, (3, 32, 32)),
    "resnet-20, 100 classes": Case(lambda: GroupNormResNet(100, blocks=3), 278_324, (3, 32, 32), 100),
    "lstm": Case(lambda: CharLstm(NUM_TOKENS), 819_920, (20,), NUM_TOKENS, is_language=True),
    "transformer": Case(lambda: CharTransformer(NUM_TOKENS), 427_600, (80,), NUM_TOKENS, is_language=True),
}
SMALL = {
    "logistic regression": CASES["logistic regression"],
    "femnist": CASES["femnist"],
    "resnet": Case(lambda: GroupNormResNet(width=4, blocks=2), 0, (3, 32, 32)),
    "lstm": Case(lambda: CharLstm(7, 3, 5), 0, (6,), 7, is_language=True),
    "transformer": Case(lambda: CharTransformer(7, 6, 8, 2), 0, (6,), 7, is_language=True),
}
LANGUAGE = {name: case for name, case in SMALL.items() if case.is_language}


def each(cases: dict[str, Case]) -> Callable[..., object]:
    return pytest.mark.parametrize("case", cases.values(), ids=cases.keys())  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@each(CASES)
def test_shapes_and_numbers_of_parameters(case: Case) -> None:
    model = case.factory()
    assert case.template(0).traits == Traits(), "clients cannot share a forward pass"
    assert sum(parameter.numel() for parameter in model.parameters()) == case.num_parameters
    assert not list(model.buffers()), "state that is not part of an update"
    logits = model(case.inputs(3))
    assert logits.shape == (3, case.num_classes, *(case.input_shape if case.is_language else ()))
    loss = functional.cross_entropy(logits, case.targets(3))
    assert float(loss.detach()) < 2 * torch.tensor(case.num_classes).log(), "far worse than guessing"


@each(CASES)
def test_initial_values_depend_only_on_the_seed(case: Case) -> None:
    first = case.template(0).initial_vector()
    task = case.task()
    torch.manual_seed(99)
    Template(task, 0)
    after = torch.rand(1)
    torch.manual_seed(99)
    assert torch.equal(torch.rand(1), after), "drew from the global generator"
    assert torch.equal(case.template(0).initial_vector(), first)
    other = case.template(1).initial_vector()
    assert torch.equal(other, first) == (case.num_parameters == 610), "only zeros are equal"


@each(SMALL)
def test_samples_do_not_influence_each_other(case: Case) -> None:
    model, inputs = case.factory().double(), case.inputs(4)
    inputs = inputs if case.is_language else inputs.double()
    together = model(inputs)
    for number in range(4):
        assert torch.allclose(model(inputs[number : number + 1])[0], together[number])


@each(SMALL)
def test_clients_under_vmap_have_the_gradients_they_have_alone(case: Case) -> None:
    """In double precision, because rounding errors can change the sign of a ReLU's input."""
    model, num_clients = case.factory().double(), 3
    inputs = torch.stack([case.inputs(2) for _ in range(num_clients)])
    inputs = inputs if case.is_language else inputs.double()
    targets = torch.stack([case.targets(2) for _ in range(num_clients)])
    parameters = {
        name: parameter.detach() + 0.1 * torch.randn(num_clients, *parameter.shape, dtype=torch.float64)
        for name, parameter in model.named_parameters()
    }

    def loss(parameters: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(model, parameters, (inputs,)), targets)

    together = vmap(grad(loss))(parameters, inputs, targets)  # a missing batching rule would warn, and hence fail
    for client in range(num_clients):
        own = {name: values[client].clone().requires_grad_() for name, values in parameters.items()}
        alone = torch.autograd.grad(loss(own, inputs[client], targets[client]), list(own.values()))
        for name, expected in zip(own, alone, strict=True):
            assert torch.allclose(together[name][client], expected, atol=1e-12), name


@each(LANGUAGE)
def test_later_tokens_do_not_change_earlier_predictions(case: Case) -> None:
    model, tokens = case.factory(), case.inputs(2)
    changed = tokens.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % case.num_classes
    before, after = model(tokens), model(changed)
    assert torch.equal(before[..., :4], after[..., :4])
    assert not torch.isclose(before[..., 4:], after[..., 4:]).all(1).any()
    assert torch.allclose(model(tokens[:, :3]), before[..., :3], atol=1e-6), "shorter sequences"


@each(LANGUAGE)
def test_earlier_tokens_change_all_later_predictions(case: Case) -> None:
    model, tokens = case.factory().double(), case.inputs(2)
    changed = tokens.clone()
    changed[:, 0] = (changed[:, 0] + 1) % case.num_classes
    assert not torch.isclose(model(tokens), model(changed), rtol=0, atol=1e-12).all(1).any()


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("length", [1, 6])
def test_the_lstm_agrees_with_torch(layers: int, length: int) -> None:
    ours, theirs = Lstm(3, 5, layers).double(), nn.LSTM(3, 5, layers, batch_first=True).double()
    ours.load_state_dict(theirs.state_dict())
    inputs = torch.randn(4, length, 3, dtype=torch.float64)
    weight = torch.randn(4, length, 5, dtype=torch.float64)
    expected = theirs(inputs)[0]
    assert torch.equal(ours(inputs), expected)
    with torch.no_grad():
        assert torch.allclose(ours(inputs), expected), "evaluation"
    slopes = torch.autograd.grad((expected * weight).sum(), list(theirs.parameters()))

    def total(parameters: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        outputs = functional_call(ours, parameters, (inputs,))
        return (outputs * weight).sum(), outputs

    given, outputs = grad(total, has_aux=True)(dict(ours.named_parameters()))  # by the steps that vmap needs
    assert torch.allclose(outputs, expected)
    for (name, slope), other in zip(given.items(), slopes, strict=True):
        assert torch.allclose(slope, other), name


def test_forget_gates_start_open() -> None:
    model = Lstm(3, 5, 2)
    biases = [model.bias_ih_l0, model.bias_ih_l1, model.bias_hh_l0, model.bias_hh_l1]
    sums = [bias.view(4, 5).sum(1).tolist() for bias in biases]
    assert sums == [[0, 5, 0, 0], [0, 5, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]


def test_channels_double_where_images_are_halved() -> None:
    model, sizes = GroupNormResNet(), []
    for block in model.blocks:
        block.register_forward_hook(lambda _, __, output: sizes.append(tuple(output.shape[1:])))
    model(torch.randn(1, 3, 32, 32))
    assert sizes == [(16, 32, 32), (32, 16, 16), (64, 8, 8)]

"""The networks of the built-in tasks, for one client and for many at once, and the memory layout of convolutions."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from helpers.small_tasks import TinyNet
from lesson.core.errors import InputError
from lesson.learn.models import CifarNet, MnistNet, max_pool
from lesson.learn.networks import CharLstm, CharTransformer, FemnistNet, GroupNormResNet, LogisticRegression, Lstm
from lesson.learn.task import ModelFactory, Task
from lesson.learn.template import Replica, Template, Traits

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

    def template(self, seed: int = 0) -> Template:
        samples = self.inputs(4), self.targets(4)
        return Template(Task(train=samples, test=samples, model=self.factory), seed)


CASES = {
    "mnist": Case(MnistNet, 61_706, (1, 28, 28)),
    "cifar10": Case(CifarNet, 1_144_650, (3, 32, 32)),
    "logistic regression": Case(lambda: LogisticRegression(60, 10), 610, (60,)),
    "femnist": Case(FemnistNet, 6_603_710, (1, 28, 28), 62),
    "resnet-8": Case(GroupNormResNet, 78_042, (3, 32, 32)),
    "resnet-20, 100 classes": Case(lambda: GroupNormResNet(100, blocks=3), 278_324, (3, 32, 32), 100),
    "lstm": Case(lambda: CharLstm(NUM_TOKENS), 819_920, (20,), NUM_TOKENS, is_language=True),
    "transformer": Case(lambda: CharTransformer(NUM_TOKENS), 427_600, (80,), NUM_TOKENS, is_language=True),
}
SMALL = {
    "logistic regression": CASES["logistic regression"],
    "resnet": Case(lambda: GroupNormResNet(width=4, blocks=2), 0, (3, 32, 32)),
    "lstm": Case(lambda: CharLstm(7, 3, 5), 0, (6,), 7, is_language=True),
    "transformer": Case(lambda: CharTransformer(7, 6, 8, 2), 0, (6,), 7, is_language=True),
}


def each(cases: dict[str, Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases.values(), ids=cases.keys())


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@each(CASES)
def test_sizes_and_initial_values(case: Case) -> None:
    """Clients can share a forward pass, and initial values depend on the seed alone."""
    model, template = case.factory(), case.template()
    assert template.traits == Traits()
    assert template.num_values == sum(one.numel() for one in model.parameters()) == case.num_parameters
    loss = functional.cross_entropy(model(case.inputs(3)), case.targets(3))
    assert float(loss.detach()) < 2 * torch.tensor(case.num_classes).log(), "far worse than guessing"
    torch.manual_seed(99)
    assert torch.equal(case.template().initial_vector(), template.initial_vector())
    if case.num_parameters != 610:  # all zeros
        assert not torch.equal(case.template(1).initial_vector(), template.initial_vector())


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_weights_of_the_papers_networks_are_glorot_uniform_and_biases_zero(name: str) -> None:
    for parameter, values in CASES[name].template().exchanged.items():
        if parameter.endswith("bias"):
            assert not values.any()
            continue
        fan_in, fan_out = nn.init._calculate_fan_in_and_fan_out(values)
        bound = (6 / (fan_in + fan_out)) ** 0.5
        assert values.abs().max() <= bound
        if values.numel() > 1000:
            assert values.std().item() == pytest.approx(bound / 3**0.5, rel=0.1)


def test_replica_has_the_outputs_and_gradients_of_its_parameters() -> None:
    images, labels, model = torch.rand((3, 1, 6, 6)), torch.tensor([0, 1, 2]), TinyNet()
    before = torch.get_rng_state()
    replica = Replica(Template(Task(train=(images, labels), test=(images, labels), model=TinyNet), 0))
    assert torch.equal(torch.get_rng_state(), before)
    replica.load(nn.utils.parameters_to_vector(model.parameters()).detach())
    outputs = replica.outputs(images, training=True)
    torch.testing.assert_close(outputs, model(images))
    functional.cross_entropy(model(images), labels).backward()
    expected = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])  # type: ignore[union-attr]
    assert torch.allclose(replica.gradient(functional.cross_entropy(outputs, labels)), expected)


def test_pairwise_maxima_are_max_pooling() -> None:
    values = torch.rand((5, 6, 8, 10)) - 0.5
    with torch.no_grad():
        assert torch.equal(max_pool(values), functional.max_pool2d(values, 2))


@each(SMALL)
def test_gradients_under_vmap_equal_those_of_single_clients(case: Case) -> None:
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


@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_predictions_depend_on_earlier_tokens_only(name: str) -> None:
    case = SMALL[name]
    model, tokens = case.factory().double(), case.inputs(2)
    first, later = tokens.clone(), tokens.clone()
    first[:, 0] = (first[:, 0] + 1) % case.num_classes
    later[:, 4:] = (later[:, 4:] + 1) % case.num_classes
    before = model(tokens)
    assert not torch.isclose(before, model(first), rtol=0, atol=1e-12).all(1).any()
    assert torch.allclose(before[..., :4], model(later)[..., :4])
    assert not torch.isclose(before[..., 4:], model(later)[..., 4:]).all(1).any()
    assert torch.allclose(model(tokens[:, :3]), before[..., :3]), "shorter sequences"


@pytest.mark.parametrize("layers", [1, 2])
def test_lstm_agrees_with_torch(layers: int) -> None:
    ours, theirs = Lstm(3, 5, layers).double(), nn.LSTM(3, 5, layers, batch_first=True).double()
    ours.load_state_dict(theirs.state_dict())
    inputs, weight = torch.randn(4, 6, 3, dtype=torch.float64), torch.randn(4, 6, 5, dtype=torch.float64)
    expected = theirs(inputs)[0]
    assert torch.allclose(ours(inputs), expected)
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
    model, images, sizes = GroupNormResNet(), torch.randn(1, 3, 32, 32), []
    for block in model.blocks:
        block.register_forward_hook(lambda _, __, output: sizes.append(tuple(output.shape[1:])))
    model(images)
    assert sizes == [(16, 32, 32), (32, 16, 16), (64, 8, 8)]


# Memory layout: torch may crash for strided 1 × 1 convolutions in channels-last layout without AVX-512.


@pytest.mark.parametrize("isa", [{}, {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}])
def test_gradients_of_convolutions_are_correct(isa: dict[str, str]) -> None:
    command, folder = [sys.executable, "-m", "helpers.layouts"], Path(__file__).parents[1]
    done = subprocess.run(command, cwd=folder, env=os.environ | isa, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1e-4


class OwnLayout(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.to(memory_format=torch.channels_last)


def test_narrow_strided_and_transposed_convolutions_avoid_channels_last() -> None:
    def template_of(model: nn.Module) -> Template:
        data = torch.rand(4, 3, 16, 16), torch.arange(4)
        return Template(Task(train=data, test=data, model=lambda: model), seed=0)

    head = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    assert template_of(GroupNormResNet()).channels_last
    assert not template_of(GroupNormResNet(width=4)).channels_last
    assert not template_of(nn.Sequential(nn.ConvTranspose2d(3, 8, 2), *head)).channels_last
    stored = nn.Sequential(nn.Conv2d(3, 8, 1, 2), *head).to(memory_format=torch.channels_last)
    assert template_of(stored).model.get_parameter("0.weight").stride() == (3, 1, 1, 1)
    with pytest.raises(InputError, match="channels-last"):
        template_of(nn.Sequential(OwnLayout(), nn.Conv2d(3, 8, 1, 2), *head))

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from helpers.small_tasks import TinyNet
from lesson import InputError, Task
from lesson.learn.dropout import draw_kept
from lesson.learn.models import CifarNet, MnistNet, cifar_net, max_pool, mnist_net
from lesson.learn.template import Replica, Template, Traits

SHAPES = {mnist_net: (1, 28, 28), cifar_net: (3, 32, 32)}


def template(factory: Callable[[], nn.Module], seed: int = 0, shape: tuple[int, ...] = (1, 6, 6)) -> Template:
    """Return a model as it is made for a task with three classes."""
    inputs = torch.rand((4, *SHAPES.get(factory, shape)), generator=torch.Generator().manual_seed(0))
    samples = inputs, torch.tensor([0, 1, 2, 0])
    return Template(Task(train=samples, test=samples, model=factory), seed)


def initial_vector(factory: Callable[[], nn.Module], seed: int) -> Tensor:
    return template(factory, seed).initial_vector()


@pytest.mark.parametrize(("factory", "count"), [(mnist_net, 61_706), (cifar_net, 1_144_650)])
def test_parameters_are_as_many_as_the_paper_says(factory: Callable[[], nn.Module], count: int) -> None:
    assert sum(parameter.numel() for parameter in factory().parameters()) == count
    assert len(initial_vector(factory, 0)) == count


@pytest.mark.parametrize("factory", [mnist_net, cifar_net])
def test_weights_are_glorot_uniform_and_biases_zero(factory: Callable[[], nn.Module]) -> None:
    model = factory()
    nn.utils.vector_to_parameters(initial_vector(factory, 3), model.parameters())
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any()
            continue
        fan_in, fan_out = nn.init._calculate_fan_in_and_fan_out(parameter)
        bound = (6 / (fan_in + fan_out)) ** 0.5
        assert parameter.abs().max() <= bound
        if parameter.numel() > 1000:
            assert parameter.std().item() == pytest.approx(bound / 3**0.5, rel=0.1)


class Normed(TinyNet):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, 2)


def test_a_custom_model_keeps_the_values_of_its_factory() -> None:
    model = Normed()
    nn.utils.vector_to_parameters(initial_vector(Normed, 0), model.parameters())
    assert model.norm.weight.tolist() == [1.0, 1.0]
    assert torch.equal(initial_vector(Normed, 0), initial_vector(Normed, 0))
    assert not torch.equal(initial_vector(Normed, 0), initial_vector(Normed, 1))


def test_the_seed_decides_the_model_and_global_seeds_do_not() -> None:
    first = initial_vector(mnist_net, 0)
    torch.manual_seed(99)
    before = torch.rand(1)
    torch.manual_seed(99)
    assert torch.equal(initial_vector(mnist_net, 0), first)
    assert torch.equal(torch.rand(1), before), "drew from the global generator"
    assert not torch.equal(initial_vector(mnist_net, 1), first)


@pytest.mark.parametrize("factory", [MnistNet, CifarNet])
def test_pooling_first_changes_nothing(factory: type[nn.Module]) -> None:
    shape = (4, 1, 28, 28) if factory is MnistNet else (4, 3, 32, 32)
    images = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    model = factory()
    hidden = functional.relu(functional.max_pool2d(model.conv1(images), 2))  # type: ignore[operator]
    assert torch.equal(hidden, functional.max_pool2d(functional.relu(model.conv1(images)), 2))  # type: ignore[operator]


def test_pairwise_maxima_are_max_pooling() -> None:
    values = torch.rand((5, 6, 8, 10), generator=torch.Generator().manual_seed(0)) - 0.5
    with torch.no_grad():
        assert torch.equal(max_pool(values), functional.max_pool2d(values, 2))


def test_a_replica_uses_the_vector_it_was_given() -> None:
    vector = initial_vector(TinyNet, 5)
    images = torch.rand((3, 1, 6, 6))
    model = TinyNet()
    nn.utils.vector_to_parameters(vector, model.parameters())
    replica = Replica(template(TinyNet))
    replica.load(vector)
    torch.testing.assert_close(replica.outputs(images, training=True), model(images))
    loss = functional.cross_entropy(replica.outputs(images, training=True), torch.tensor([0, 1, 2]))
    functional.cross_entropy(model(images), torch.tensor([0, 1, 2])).backward()
    expected = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])  # type: ignore[union-attr]
    assert torch.allclose(replica.gradient(loss), expected)


def with_layer(layer: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(5, 3), layer)


def test_statistics_of_batchnorm_are_exchanged_like_parameters() -> None:
    """Its number of minibatches is not: each client counts from the new model's number."""
    made = template(with_layer(nn.BatchNorm1d(3)), shape=(5,))
    assert made.traits.buffers == ("1.running_mean", "1.running_var")
    assert made.traits.counters == ("1.num_batches_tracked",)
    assert "influence each other" in made.traits.needs_own_pass
    assert list(made.shapes) == ["0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"]
    assert made.initial_vector().tolist()[-6:] == [0.0] * 3 + [1.0] * 3, "trying the model has changed it"
    vector, replica = torch.arange(float(made.num_values)), Replica(made)
    replica.load(vector.clone())  # training writes into it
    assert torch.equal(replica.vector(), vector)
    replica.outputs(torch.ones(4, 5), training=True)
    assert not torch.equal(replica.vector()[-6:], vector[-6:])
    assert int(replica.model[1].num_batches_tracked) == 1  # type: ignore[index, arg-type]
    replica.load(vector)
    assert int(replica.model[1].num_batches_tracked) == 0  # type: ignore[index, arg-type]


def test_dropout_is_recognized_by_its_random_numbers() -> None:
    assert template(with_layer(nn.Dropout(0.5)), shape=(5,)).traits == Traits(random=True)
    assert template(TinyNet).traits == Traits()


def test_frozen_parameters_are_shared_and_not_exchanged() -> None:
    made = template(with_layer(nn.Linear(3, 3).requires_grad_(False)), shape=(5,))
    assert list(made.shapes) == ["0.weight", "0.bias"]
    replica = Replica(made)
    assert len(replica.parameters) == 2
    assert replica.model[1].weight is made.model[1].weight  # type: ignore[index]
    assert replica.model[0].weight is not made.model[0].weight  # type: ignore[index]


def test_a_model_without_trainable_parameters_is_rejected() -> None:
    with pytest.raises(InputError, match="model must have trainable parameters, got none"):
        template(nn.ReLU, shape=(5,))


def test_dropout_keeps_a_quarter_and_the_mean() -> None:
    clients, zero = torch.arange(50).repeat_interleave(20), torch.zeros(1000, dtype=torch.int64)
    kept = draw_kept(0, 4096, clients, zero, torch.arange(20).repeat(50))
    assert kept.shape == (1000, 4096)
    assert set(kept.unique().tolist()) == {0.0, 4.0}
    assert float(kept.mean()) == pytest.approx(1.0, abs=0.005)
    alone = draw_kept(0, 4096, torch.tensor([7]), torch.tensor([0]), torch.tensor([3]))
    assert torch.equal(kept[7 * 20 + 3], alone[0])
    assert not torch.equal(kept[0], kept[1])

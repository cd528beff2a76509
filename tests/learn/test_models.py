import pytest
import torch
from torch import nn
from torch.nn import functional

from helpers.small_tasks import TinyNet
from lesson import InputError
from lesson.learn.dropout import draw_kept
from lesson.learn.models import CifarNet, MnistNet, Replica, check_model, initial_vector, max_pool


@pytest.mark.parametrize(("factory", "count"), [(MnistNet, 61_706), (CifarNet, 1_144_650)])
def test_parameters_are_as_many_as_the_paper_says(factory: type[nn.Module], count: int) -> None:
    assert sum(parameter.numel() for parameter in factory().parameters()) == count
    assert len(initial_vector(factory, 0)) == count


@pytest.mark.parametrize("factory", [MnistNet, CifarNet])
def test_weights_are_glorot_uniform_and_biases_zero(factory: type[nn.Module]) -> None:
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
    first = initial_vector(MnistNet, 0)
    torch.manual_seed(99)
    before = torch.rand(1)
    torch.manual_seed(99)
    assert torch.equal(initial_vector(MnistNet, 0), first)
    assert torch.equal(torch.rand(1), before), "drew from the global generator"
    assert not torch.equal(initial_vector(MnistNet, 1), first)


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
    replica = Replica(TinyNet)
    replica.load(vector)
    assert torch.equal(replica.logits(images), model(images))
    loss = functional.cross_entropy(replica.logits(images), torch.tensor([0, 1, 2]))
    functional.cross_entropy(model(images), torch.tensor([0, 1, 2])).backward()
    expected = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])  # type: ignore[union-attr]
    assert torch.allclose(replica.gradient(loss), expected)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "model must not have BatchNorm1d .at '1'.*GroupNorm"),
        (
            nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)),
            "model must not have Dropout .at '1'.*masks to forward as CifarNet",
        ),
        (nn.Linear(2, 2).requires_grad_(False), "model must not have frozen parameters, got .weight."),
        (nn.ReLU(), "model must have trainable parameters, got none"),
    ],
)
def test_models_that_cannot_be_merged(module: nn.Module, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_model(module)


def test_dropout_keeps_a_quarter_and_the_mean() -> None:
    clients, zero = torch.arange(50).repeat_interleave(20), torch.zeros(1000, dtype=torch.int64)
    kept = draw_kept(0, 4096, clients, zero, torch.arange(20).repeat(50))
    assert kept.shape == (1000, 4096)
    assert set(kept.unique().tolist()) == {0.0, 4.0}
    assert float(kept.mean()) == pytest.approx(1.0, abs=0.005)
    alone = draw_kept(0, 4096, torch.tensor([7]), torch.tensor([0]), torch.tensor([3]))
    assert torch.equal(kept[7 * 20 + 3], alone[0])
    assert not torch.equal(kept[0], kept[1])

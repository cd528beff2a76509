"""The paper's two networks, and the requirements on custom models."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from lesson.core.errors import InputError
from lesson.core.random import stream
from lesson.learn.counters import kernels_for

ModelFactory = Callable[[], nn.Module]


class MnistNet(nn.Module):
    """LeNet-5 for 28 × 28 gray images, 61,706 parameters.

    Pooling comes before the ReLU, which gives the same values in less time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.full1 = nn.Linear(400, 120)
        self.full2 = nn.Linear(120, 84)
        self.out = nn.Linear(84, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, shape (num_samples, 10)."""
        hidden = conv_pool_relu(self.conv2, conv_pool_relu(self.conv1, images)).flatten(1)
        hidden = functional.relu(self.full2(functional.relu(self.full1(hidden))))
        logits: Tensor = self.out(hidden)
        return logits


class CifarNet(nn.Module):
    """Four 3 × 3 convolutions, dropout of 0.75 and a hidden layer of 256 units for 32 × 32 color images.

    The network has 1,144,650 parameters.
    """

    num_dropout_units = 4096

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.conv3 = nn.Conv2d(64, 64, 3, padding=1)
        self.conv4 = nn.Conv2d(64, 64, 3, padding=1)
        self.full = nn.Linear(self.num_dropout_units, 256)
        self.out = nn.Linear(256, 10)

    def forward(self, images: Tensor, kept: Tensor | None = None) -> Tensor:
        """Return the logits, shape (num_samples, 10). `kept` has the dropout factors, 0 or 4; see dropout.py."""
        hidden = conv_pool_relu(self.conv2, conv_pool_relu(self.conv1, images))
        hidden = functional.relu(self.conv4(functional.relu(self.conv3(hidden)))).flatten(1)
        if kept is not None:
            hidden = hidden * kept
        logits: Tensor = self.out(functional.relu(self.full(hidden)))
        return logits


def conv_pool_relu(layer: nn.Conv2d, images: Tensor) -> Tensor:
    """Apply a convolution, 2 × 2 max pooling and ReLU; on a GPU with custom kernels if they are available."""
    if kernels_for(images) is not None:
        from lesson.learn.cuda import layers

        return layers.conv_pool_relu(layer, images)
    return functional.relu(max_pool(layer(images)))


def max_pool(values: Tensor) -> Tensor:
    """Apply 2 × 2 max pooling; if no gradient is needed by pairwise maxima, as torch is slow for few channels."""
    if torch.is_grad_enabled():
        return functional.max_pool2d(values, 2)
    rows = torch.maximum(values[..., ::2], values[..., 1::2])
    return torch.maximum(rows[:, :, ::2], rows[:, :, 1::2])


FACTORIES: dict[str, ModelFactory] = {"mnist": MnistNet, "fashion-mnist": MnistNet, "cifar10": CifarNet}


def initial_vector(factory: ModelFactory, seed: int) -> Tensor:
    """Return all parameters of a new model as one vector, initialized from the seed.

    The paper's networks get Glorot-uniform weights and zero biases; other models keep the values from their factory.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(stream(seed, "model").integers(2**63)))
        model = factory()
        check_model(model)
        if factory in FACTORIES.values():
            for parameter in model.parameters():
                nn.init.xavier_uniform_(parameter) if parameter.dim() > 1 else nn.init.zeros_(parameter)
    return nn.utils.parameters_to_vector(model.parameters()).detach().to(torch.float32)


def make_model(factory: ModelFactory) -> nn.Module:
    """Return a new model without changing the state of torch's global random generator."""
    with torch.random.fork_rng(devices=[]):
        return factory()


def named_arrays(factory: ModelFactory, vector: Tensor) -> dict[str, npt.NDArray[np.float32]]:
    """Return the parameters of a vector by name, in the model's own shapes."""
    model = make_model(factory)
    nn.utils.vector_to_parameters(vector.cpu().clone(), model.parameters())
    return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}


def check_model(model: nn.Module) -> None:
    """Raise InputError if a model cannot be trained and aggregated here."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm | nn.modules.dropout._DropoutNd):
            kind = type(module).__name__
            remedy = "use GroupNorm" if "Norm" in kind else "pass masks to forward as CifarNet does"
            raise InputError(
                f"model must not have {kind} (at '{name}'), whose state is not part of an update; {remedy}"
            )
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    if frozen:
        raise InputError(f"model must not have frozen parameters, got '{frozen[0]}'")
    if not list(model.parameters()):
        raise InputError("model must have trainable parameters, got none")


class Replica:
    """A model whose parameters are loaded from vectors. Each thread needs its own."""

    def __init__(self, factory: ModelFactory, device: str = "cpu") -> None:
        self.model = make_model(factory).to(device)
        self.parameters = list(self.model.parameters())
        self.num_dropout_units = int(getattr(self.model, "num_dropout_units", 0))
        sizes = [parameter.numel() for parameter in self.parameters]
        self._ends = torch.tensor(sizes).cumsum(0).tolist()

    def load(self, vector: Tensor) -> None:
        """Set the parameters to the values of a vector."""
        for parameter, values in zip(self.parameters, self._views(vector), strict=True):
            if values.dim() == 4:  # .contiguous() would not make a single channel channels-last
                parameter.data = torch.empty_like(values, memory_format=torch.channels_last).copy_(values)
            else:
                parameter.data = values

    def named_views(self, vectors: Tensor) -> dict[str, Tensor]:
        """Return the parameters of several models by name, shape (num_models, *shape), as views of their vectors."""
        parts = vectors.tensor_split(self._ends[:-1], dim=1)
        named = zip(self.model.named_parameters(), parts, strict=True)
        return {name: part.unflatten(1, parameter.shape) for (name, parameter), part in named}

    def logits(self, images: Tensor, kept: Tensor | None = None) -> Tensor:
        """Return the logits of the images, shape (num_images, num_classes)."""
        output: Tensor = self.model(images, kept) if kept is not None else self.model(images)
        return output

    def gradient(self, loss: Tensor) -> Tensor:
        """Return the gradient of a loss with respect to all parameters as one vector."""
        return torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, self.parameters)])

    def descend(self, loss: Tensor, lr: float, base: Tensor, mu: float = 0.0) -> None:
        """Take one step of SGD on loss + μ/2·‖w − base‖², updating the parameters w in place."""
        gradient = torch.autograd.grad(loss, self.parameters)
        for parameter, part, start in zip(self.parameters, gradient, self._views(base), strict=True):
            if mu:
                part = part.add(parameter.data - start, alpha=mu)
            parameter.data.add_(part, alpha=-lr)

    def vector(self) -> Tensor:
        """Return all parameters as one vector."""
        return torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters])

    def _views(self, vector: Tensor) -> list[Tensor]:
        """Return the parameters as views of a vector."""
        parts = vector.tensor_split(self._ends[:-1])
        return [part.view(parameter.shape) for part, parameter in zip(parts, self.parameters, strict=True)]

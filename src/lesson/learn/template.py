"""The model of a task: the values that clients exchange, how the model behaves, and replicas to load values into.

Clients exchange the trainable parameters and the float buffers that training changes, concatenated into one vector.
Frozen parameters and constant buffers are shared by all replicas of a process and by its worker processes.
"""

import copy
import hashlib
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lesson.core.errors import InputError, describe
from lesson.core.random import stream
from lesson.learn.losses import TaskLoss
from lesson.learn.task import ACCURACY, Arrays, Task
from lesson.learn.trees import describe_tree, join, leaves_of, map_tensors, num_samples, split

GENERATORS = threading.Lock()
"""Held while torch's generators are seeded: they belong to the process, and Flower may train clients in threads."""
NUM_PROBED = 4
"""Number of samples on which a new model is tried."""
COUPLING = 1e-3
"""Samples influence each other if the relative difference of outputs is above this value."""
NUDGE = 0.05
"""Standard deviation of the random changes of parameters with which this is tried."""


@dataclass(frozen=True)
class Traits:
    """How a model behaves in training."""

    buffers: tuple[str, ...] = ()
    """Float buffers that training changes."""
    counters: tuple[str, ...] = ()
    """Other buffers that training changes, such as BatchNorm's number of minibatches."""
    random: bool = False
    """Whether the model draws random numbers."""
    random_scores: bool = False
    """Whether it draws random numbers in evaluation, too."""
    coupled: bool = False
    """Whether the output or the loss of a sample depends on the other samples of its minibatch."""
    refuses_one: bool = False
    """Whether the model cannot train on a single sample."""
    channels_last: bool = True
    """Whether all convolutions are known to work in channels-last layout on a CPU; see `_Convolutions`."""

    @property
    def needs_own_pass(self) -> str:
        """Why clients cannot share a forward pass; empty if they can."""
        if self.random:
            return "the model draws random numbers, such as dropout"
        return "samples of a minibatch influence each other, as in BatchNorm" if self.coupled or self.buffers else ""


class Template:
    """The new model of a task for a seed, on one device."""

    def __init__(self, task: Task, seed: int, device: str = "cpu") -> None:
        with GENERATORS, torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(stream(seed, "model").integers(2**63)))
            model = _made(task)
        self.loss = TaskLoss(task.loss, task.train[1])
        self.traits = _probed(task, model, self.loss)
        self.channels_last = self.traits.channels_last or device != "cpu"
        """Whether weights and images are stored channels-last, in which convolutions are fastest."""
        self.model = model.to(device)
        parameters = {name: one for name, one in model.named_parameters() if one.requires_grad}
        buffers = dict(model.named_buffers())
        self.exchanged: dict[str, Tensor] = parameters | {name: buffers[name] for name in self.traits.buffers}
        """Tensors that clients exchange, by name."""
        self.num_dropout_units = int(getattr(model, "num_dropout_units", 0))

    @property
    def num_values(self) -> int:
        """Number of values that clients exchange."""
        return sum(one.numel() for one in self.exchanged.values())

    @property
    def parameter_sizes(self) -> list[int]:
        """Number of values of each trained parameter; buffers come after them in a vector."""
        return [one.numel() for name, one in self.exchanged.items() if name not in self.traits.buffers]

    def initial_vector(self) -> Tensor:
        """Return the exchanged values of the new model as one vector, in 32 bits."""
        return torch.cat([one.detach().reshape(-1).float() for one in self.exchanged.values()])

    def named_arrays(self, vector: Tensor) -> dict[str, npt.NDArray[np.float32]]:
        """Return the exchanged tensors of a vector by name, in the model's own shapes."""
        parts = vector.detach().cpu().split([one.numel() for one in self.exchanged.values()])
        pairs = zip(self.exchanged.items(), parts, strict=True)
        return {name: part.reshape(one.shape).numpy().copy() for (name, one), part in pairs}

    @property
    def shared_digest(self) -> str:
        """Digest of frozen parameters and constant buffers, which a seed may draw but clients do not exchange."""
        digest = hashlib.sha256()
        for name, one in [*self.model.named_parameters(), *self.model.named_buffers()]:
            if name not in self.exchanged:
                values = one.detach().cpu().reshape(-1).view(torch.uint8)
                digest.update(f"{name} {one.dtype} {tuple(one.shape)} ".encode())
                digest.update(values.numpy().tobytes())
        return digest.hexdigest()

    def copy_model(self) -> nn.Module:
        """Return a copy of the model that shares its frozen parameters and constant buffers."""
        changing = {id(one) for one in self.exchanged.values()}
        counters = {id(one) for name, one in self.model.named_buffers() if name in self.traits.counters}
        tensors = [*self.model.parameters(), *self.model.buffers()]
        return copy.deepcopy(self.model, {id(one): one for one in tensors if id(one) not in changing | counters})


class Replica:
    """A copy of a model whose exchanged values are loaded from vectors. Each thread needs its own."""

    def __init__(self, template: Template) -> None:
        self.model = template.copy_model().train()  # all of it, as `outputs` does after an evaluation
        self._channels_last = template.channels_last
        named = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        self._exchanged = [named[name] for name in template.exchanged]
        self.parameters = [one for one in self._exchanged if isinstance(one, nn.Parameter)]
        self._names = list(template.exchanged)
        self._counters = [(named[name], named[name].clone()) for name in template.traits.counters]
        self._places = [
            (self.model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], named[name])
            for name in template.traits.buffers + template.traits.counters
        ]
        """Module, name and tensor of each buffer that training changes; a model may put another tensor there."""
        sizes = [one.numel() for one in self._exchanged]
        self._ends = torch.tensor(sizes).cumsum(0).tolist()

    def load(self, vector: Tensor) -> None:
        """Set the exchanged values to those of a vector."""
        for one, values in zip(self._exchanged, self.views(vector), strict=True):
            if values.dim() == 4 and self._channels_last:  # .contiguous() would not make a single channel channels-last
                one.data = torch.empty_like(values, dtype=one.dtype, memory_format=torch.channels_last).copy_(values)
            else:  # the model itself changes buffers, but the vector must stay as it is
                one.data = values.to(one.dtype, copy=not isinstance(one, nn.Parameter))
        for counter, first in self._counters:
            counter.copy_(first)
        for module, name, one in self._places:
            setattr(module, name, one)

    def named_views(self, vectors: Tensor) -> dict[str, Tensor]:
        """Return the exchanged values of several models by name, shape (num_models, *shape), as views of vectors."""
        parts = vectors.tensor_split(self._ends[:-1], dim=1)
        named = zip(self._names, self._exchanged, parts, strict=True)
        return {name: part.unflatten(1, one.shape) if one.dim() else part[:, 0] for name, one, part in named}

    def outputs(self, inputs: Any, *, training: bool = False) -> Any:
        """Return the model's output for the inputs of a minibatch."""
        if self.model.training != training:
            self.model.train(training)
        return call(self.model, inputs if self._channels_last else channels_first(inputs))

    def gradient(self, loss: Tensor) -> Tensor:
        """Return the gradient of a loss with respect to all parameters as one vector."""
        return torch.cat([part.reshape(-1) for part in self.gradients(loss)])

    def gradients(self, loss: Tensor) -> tuple[Tensor, ...]:
        """Return the gradient of a loss for each parameter; 0 for a parameter that the loss does not depend on."""
        return torch.autograd.grad(loss, self.parameters, materialize_grads=True)

    def vector(self) -> Tensor:
        """Return the exchanged values as one vector."""
        buffers = [
            getattr(module, name) for module, name, _ in self._places[: len(self._exchanged) - len(self.parameters)]
        ]
        return torch.cat([one.detach().reshape(-1).float() for one in (*self.parameters, *buffers)])

    def views(self, vector: Tensor) -> list[Tensor]:
        """Return the exchanged values as views of a vector, those of parameters first."""
        parts = vector.tensor_split(self._ends[:-1])
        return [part.view(one.shape) for part, one in zip(parts, self._exchanged, strict=True)]


def arguments_of(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a model for inputs: one tensor, a tuple of arguments or a dict of named arguments."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


def call(model: nn.Module, inputs: Any) -> Any:
    """Apply a model to inputs."""
    arguments, named = arguments_of(inputs)
    return model(*arguments, **named)


def prepared(task: Task, inputs: Arrays) -> Any:
    """Return inputs as the model gets them."""
    return inputs if task.prepare is None else task.prepare(inputs)


def channels_first(inputs: Any) -> Any:
    """Return inputs whose tensors are stored in the order of their dimensions, copied if they are not."""

    def copied(one: Tensor) -> Tensor:
        is_last = one.dim() == 4 and _is_channels_last(one)
        return one.clone(memory_format=torch.contiguous_format) if is_last else one

    return map_tensors(copied, inputs)


def _is_channels_last(images: Tensor) -> bool:
    """Return whether the channels of a pixel are adjacent; unlike in `Tensor.is_contiguous`, even if there is one."""
    return images.stride(1) == 1 and images.shape[2:].numel() > 1


class _Convolutions(TorchDispatchMode):
    """Records whether all executed convolutions are known to work in channels-last layout.

    In this layout, if a 1 × 1 convolution has a stride above 1 and fewer than 8 input channels, the backward pass of
    oneDNN 3.12 (torch 2.13) writes beyond its buffers on CPUs without AVX-512, and the process may abort. Other shapes
    were tested and work. To leave a margin, the number of channels must be a multiple of 16, the width of the largest
    vector registers. Transposed convolutions do not use the layout, either. torch also chooses it if only the weights
    have it, so those of new models are made contiguous.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.channels_last, self.crash = True, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket._qualified_op_name in ("aten::convolution", "aten::_convolution"):
            images, weight, _, stride, _, _, is_transposed = args[:7]
            skips = weight.shape[2:].numel() == 1 and max(stride) > 1
            if images.dim() == 4 and (is_transposed or (skips and weight.shape[1] % 16)):
                self.channels_last = False
                self.crash |= skips and _is_channels_last(images)
        return func(*args, **(kwargs or {}))


def _made(task: Task) -> nn.Module:
    """Return a new model of the task; raise InputError if it cannot be trained."""
    try:
        model = task.model()
    except Exception as error:  # a custom model may raise anything
        raise InputError(f"model cannot be created: {describe(error)}") from error
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be a function or class that returns a new nn.Module, got {type(model).__name__}")
    trainable = {name: one for name, one in model.named_parameters() if one.requires_grad}
    if not trainable:
        raise InputError("model must have trainable parameters, got none")
    for name, one in trainable.items():
        if isinstance(one, nn.parameter.UninitializedParameter):
            raise InputError(f"model must not have lazy layers, such as the one of '{name}'; give their input sizes")
        if not one.is_floating_point():
            raise InputError(f"trainable parameters must be real floating-point numbers, got {one.dtype} for '{name}'")
    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # see `_Convolutions`
    return model


def _probed(task: Task, model: nn.Module, loss: TaskLoss) -> Traits:
    """Try a model on a few samples; raise InputError if model, loss and data do not fit together."""
    try:
        model = copy.deepcopy(model).train()
    except Exception as error:  # torch cannot copy tensors with a history, such as those of the old weight_norm
        raise InputError(f"model cannot be copied: {describe(error)}") from error
    count = min(NUM_PROBED, num_samples(task.train[1]))
    raw, targets = (map_tensors(lambda one: one[:count], part) for part in task.train)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with _Convolutions() as convolutions:
        outputs, is_random = _watched(task, model, raw)
    if convolutions.crash:
        raise InputError(
            "model must not pass channels-last images to a 1 × 1 convolution with a stride above 1, unless its number "
            "of input channels is a multiple of 16: torch crashes on some CPUs; call .contiguous() on them first"
        )
    if task.metric == ACCURACY and task.metrics is None:
        _check_classes(task, outputs, targets)
    _check_loss(loss, model, outputs, targets)
    changed = [name for name, buffer in model.named_buffers() if name in before and _differs(buffer, before[name])]
    floats = {name for name, buffer in model.named_buffers() if buffer.is_floating_point()}
    return Traits(
        buffers=tuple(name for name in changed if name in floats),
        counters=tuple(name for name in changed if name not in floats),
        random=is_random,
        refuses_one=_refuses_one(task, model, raw),
        coupled=not is_random and _is_coupled(task, model, loss, raw, targets),
        random_scores=is_random and _watched(task, model.eval(), raw)[1],
        channels_last=convolutions.channels_last,
    )


def _watched(task: Task, model: nn.Module, raw: Arrays) -> tuple[Any, bool]:
    """Return the outputs of a few samples, and whether random numbers were drawn."""
    with GENERATORS, torch.random.fork_rng(devices=[]):
        state = torch.random.get_rng_state()
        outputs = _outputs(task, model, raw)
        return outputs, not torch.equal(state, torch.random.get_rng_state())


def _differs(one: Tensor, other: Tensor) -> bool:
    """Return whether values differ; tensors of another shape are caches that a model fills, not values to exchange."""
    return one.shape == other.shape and not torch.equal(one.nan_to_num(), other.nan_to_num())


def _outputs(task: Task, model: nn.Module, raw: Arrays) -> Any:
    """Return the outputs of a few samples."""
    try:
        inputs = prepared(task, raw)
    except Exception as error:  # a custom function may raise anything
        raise InputError(f"prepare cannot process inputs {describe_tree(raw)}: {describe(error)}") from error
    try:
        return call(model, channels_first(inputs))
    except Exception as error:
        raise InputError(f"model cannot process inputs {describe_tree(inputs)}: {describe(error)}") from error


def _check_loss(loss: TaskLoss, model: nn.Module, outputs: Any, targets: Arrays) -> None:
    shapes = f"outputs {describe_tree(outputs)} and targets {describe_tree(targets)}"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Using a target size")  # shape (n,) and (n, 1) would become (n, n)
            values = loss.values(outputs, targets)
    except UserWarning as error:
        raise InputError(f"outputs and targets must have the same shape for this loss, got {shapes}") from error
    except Exception as error:
        raise InputError(f"loss cannot compare {shapes}: {describe(error)}") from error
    if not isinstance(values, Tensor) or values.shape[:1] != (num_samples(targets),):
        got = describe_tree(values) if isinstance(values, Tensor) else repr(values)[:80]
        raise InputError(
            f"loss must return one value per sample, got {got} for {num_samples(targets)} samples; use "
            "reduction='none' for losses of torch"
        )
    if not values.requires_grad:
        raise InputError("loss must depend on the model's parameters; got values without a gradient")
    trainable = [one for one in model.parameters() if one.requires_grad]
    try:
        torch.autograd.grad(values.mean(), trainable, allow_unused=True)
    except RuntimeError as error:
        raise InputError(f"the gradient of the loss cannot be computed: {describe(error)}") from error


def _check_classes(task: Task, outputs: Any, targets: Arrays) -> None:
    """Raise InputError unless outputs are logits of all classes, as accuracy needs them."""
    assert isinstance(targets, Tensor), "accuracy needs integer targets"
    fits = isinstance(outputs, Tensor) and outputs.dim() == targets.dim() + 1 and outputs.shape[2:] == targets.shape[1:]
    if not fits:
        shape = ", ".join(map(str, (len(targets), "classes", *targets.shape[1:])))
        raise InputError(
            f"model must return logits of shape ({shape}) for integer targets, got {describe_tree(outputs)}; for other "
            "outputs, give loss and metrics"
        )
    most = max(int(task.train[1].max()), int(task.test[1].max()))
    if most >= outputs.shape[1]:
        raise InputError(
            f"model must return at least {most + 1} logits, as targets go up to {most}, got {outputs.shape[1]}"
        )
    if task.class_names and len(task.class_names) != outputs.shape[1]:
        raise InputError(f"class_names must have {outputs.shape[1]} names, one per logit, got {len(task.class_names)}")


def _refuses_one(task: Task, model: nn.Module, raw: Arrays) -> bool:
    """Return whether a model that has processed several samples fails on one, as BatchNorm does in training."""
    try:
        with GENERATORS, torch.random.fork_rng(devices=[]):
            call(model, prepared(task, map_tensors(lambda one: one[:1], raw)))
    except Exception:
        return True
    return False


@torch.no_grad()
def _is_coupled(task: Task, model: nn.Module, loss: TaskLoss, raw: Arrays, targets: Arrays) -> bool:
    """Return whether the outputs or the loss of a sample change if it is alone in its minibatch.

    The model's parameters are changed at random first: a gate or an adapter that starts at 0 would hide the influence.
    """
    generator = torch.Generator().manual_seed(0)
    for one in model.parameters():
        if one.requires_grad:
            one.add_(NUDGE * torch.randn(one.shape, generator=generator).to(one.dtype))
    ones = [1] * num_samples(targets)
    outputs = call(model, prepared(task, raw))
    losses = loss.each(outputs, targets)
    try:
        alone = join([call(model, prepared(task, sample)) for sample in split(raw, ones)])
        each = torch.cat(list(map(loss.each, split(outputs, ones), split(targets, ones))))
        pairs = zip(leaves_of((alone, each)), leaves_of((outputs, losses)), strict=True)
        return any(_is_far(*pair) for pair in pairs)
    except Exception:  # BatchNorm rejects a single sample, and some outputs are not tensors with one row per sample
        return True


def _is_far(alone: Tensor, together: Tensor) -> bool:
    scale = max(float(together.abs().max()), 1e-6)
    return alone.shape != together.shape or not float((alone - together).abs().max()) <= COUPLING * scale

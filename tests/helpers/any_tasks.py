"""Small tasks of every kind: features, images, sequences, several inputs, own losses, frozen and random layers."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lesson import Settings, Task
from lesson.learn.networks import CharLstm, CharTransformer, GroupNormResNet
from lesson.learn.workload import Workload, make_workload

NUM_TRAIN, NUM_TEST, NUM_CLIENTS = 160, 40, 8


class Mlp(nn.Module):
    """Two layers on ten features; `norm` and `dropout` are optional layers between them."""

    def __init__(self, num_outputs: int = 3, norm: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.hidden = nn.Linear(10, 16)
        self.norm = nn.BatchNorm1d(16) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(16, num_outputs)

    def forward(self, features: Tensor) -> Tensor:
        outputs: Tensor = self.out(self.dropout(torch.relu(self.norm(self.hidden(features)))))
        return outputs


class Adapted(nn.Module):
    """A frozen layer with a trainable low-rank adapter, as in LoRA."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(10, 16)
        self.frozen.requires_grad_(False)
        self.down, self.up = nn.Linear(10, 2, bias=False), nn.Linear(2, 16, bias=False)
        self.out = nn.Linear(16, 3)

    def forward(self, features: Tensor) -> Tensor:
        outputs: Tensor = self.out(torch.relu(self.frozen(features) + self.up(self.down(features))))
        return outputs


class TwoInputs(nn.Module):
    """Adds a scaled second input to the features of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Mlp()
        self.scale = nn.Parameter(torch.ones(()))  # a parameter without axes

    def forward(self, features: Tensor, shift: Tensor) -> Tensor:
        outputs: Tensor = self.net(features + self.scale * shift)
        return outputs


class TwoOutputs(Mlp):
    """Returns the hidden units beside the logits."""

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        hidden = torch.relu(self.hidden(features))
        return self.out(hidden), hidden


class TorchLstm(nn.Module):
    """torch's own LSTM, which has no rule for vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.out = nn.Embedding(7, 4), nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 7)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(tokens))
        outputs: Tensor = self.out(hidden).transpose(1, 2)
        return outputs


def margin_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The squared cross-entropy of each sample."""
    return functional.cross_entropy(outputs, targets, reduction="none").square()


def penalized_loss(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    """The cross-entropy of each sample plus the mean square of its hidden units."""
    logits, hidden = outputs
    return functional.cross_entropy(logits, targets, reduction="none") + hidden.square().mean(1)


def share_correct(outputs: tuple[Tensor, Tensor], targets: Tensor) -> float:
    return float((outputs[0].argmax(1) == targets).float().mean())


def contrast_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that depends on the whole minibatch: the cross-entropy of each sample, relative to the largest one."""
    losses = functional.cross_entropy(outputs, targets, reduction="none")
    return losses.square() / losses.max().detach()


def rmse(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    error = (outputs - targets).square().mean().sqrt()
    return {"rmse": float(error), "largest_error": float((outputs - targets).abs().max())}


def features(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return ten float features and three classes that depend on them."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(NUM_TRAIN + NUM_TEST, 10))
    return inputs, (inputs[:, :3] + 0.3 * rng.normal(size=(len(inputs), 3))).argmax(1)


def feature_task(model: Callable[[], nn.Module] = Mlp, **changes: object) -> Task:
    inputs, labels = features()
    given = {"train": (inputs[:NUM_TRAIN], labels[:NUM_TRAIN]), "test": (inputs[NUM_TRAIN:], labels[NUM_TRAIN:])}
    return Task(**given | {"model": model} | changes)  # type: ignore[arg-type]


def regression_task(**changes: object) -> Task:
    inputs, _ = features()
    targets = inputs[:, :1] * 2 - inputs[:, 1:2]
    given: dict[str, object] = {
        "train": (inputs[:NUM_TRAIN], targets[:NUM_TRAIN]),
        "test": (inputs[NUM_TRAIN:], targets[NUM_TRAIN:]),
        "model": partial(Mlp, 1),
        "loss": functional.mse_loss,
    }
    return Task(**given | changes)  # type: ignore[arg-type]


def image_classes() -> Task:
    rng = np.random.default_rng(0)
    images = rng.normal(size=(NUM_TRAIN + NUM_TEST, 3, 8, 8)).astype(np.float32)
    labels = images.mean(axis=(2, 3)).argmax(1)
    train, test = (images[:NUM_TRAIN], labels[:NUM_TRAIN]), (images[NUM_TRAIN:], labels[NUM_TRAIN:])
    return Task(train=train, test=test, model=partial(GroupNormResNet, num_classes=3, width=4))


def token_task(model: Callable[[], nn.Module]) -> Task:
    rng = np.random.default_rng(0)
    tokens = np.cumsum(rng.integers(1, 3, (NUM_TRAIN + NUM_TEST, 7)), axis=1) % 7
    train, test = tokens[:NUM_TRAIN], tokens[NUM_TRAIN:]
    return Task(train=(train[:, :-1], train[:, 1:]), test=(test[:, :-1], test[:, 1:]), model=model)


def two_inputs(as_dict: bool = False) -> Task:
    inputs, labels = features()
    shift = np.random.default_rng(1).normal(size=inputs.shape)

    def part(rows: slice) -> object:
        named = {"features": inputs[rows], "shift": shift[rows]}
        return named if as_dict else tuple(named.values())

    train, test = slice(NUM_TRAIN), slice(NUM_TRAIN, None)
    return Task(train=(part(train), labels[train]), test=(part(test), labels[test]), model=TwoInputs)


INDEPENDENT: dict[str, Callable[[], Task]] = {
    "mlp": feature_task,
    "adapter": partial(feature_task, Adapted),
    "resnet": image_classes,
    "lstm": lambda: token_task(partial(CharLstm, 7, embedding=4, hidden=8, layers=2)),
    "transformer": lambda: token_task(partial(CharTransformer, 7, length=6, width=16, heads=2, layers=1)),
    "regression": regression_task,
    "own loss": lambda: feature_task(loss=margin_loss),
    "two outputs": lambda: feature_task(TwoOutputs, loss=penalized_loss, metrics=share_correct),
    "tuple": two_inputs,
    "dict": lambda: two_inputs(as_dict=True),
}
"""Tasks whose clients can share a forward pass."""
COUPLED: dict[str, Callable[[], Task]] = {
    "batch norm": lambda: feature_task(partial(Mlp, norm=True)),
    "dropout": lambda: feature_task(partial(Mlp, dropout=0.3)),
    "contrast": lambda: feature_task(loss=contrast_loss),
}
"""Tasks whose clients need a pass of their own."""


def workload_of(task: Task, device: str = "cpu", **settings: object) -> Workload:
    usual = {"split": "iid", "batch_size": 5, "num_clients": NUM_CLIENTS, "device": device}
    return make_workload(Settings(**usual | settings), task)

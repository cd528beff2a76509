"""The model, the data of each client, training and evaluation: plain PyTorch, which knows nothing about Flower."""

import itertools

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, max_pool2d, relu
from torch.utils.data import DataLoader, TensorDataset

import lesson

Loader = DataLoader[tuple[Tensor, ...]]


class Net(nn.Module):
    """A small convolutional network for images of 28 × 28 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, kernel_size=5)
        self.conv2 = nn.Conv2d(8, 16, kernel_size=5)
        self.fc1 = nn.Linear(16 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of the classes, shape (batch, 10)."""
        features = max_pool2d(relu(self.conv1(images)), 2)
        features = max_pool2d(relu(self.conv2(features)), 2)
        logits: Tensor = self.fc2(relu(self.fc1(features.flatten(1))))
        return logits


def load_data(partition_id: int, num_partitions: int, batch_size: int) -> tuple[Loader, Loader]:
    """Return the training and test data of a client: every `num_partitions`-th image, of which it tests on a fifth.

    Replace this function to train on the data of your own devices.
    """
    images, labels = _mnist("train")
    images, labels = images[partition_id::num_partitions], labels[partition_id::num_partitions]
    num_train = len(images) * 4 // 5
    train = TensorDataset(images[:num_train], labels[:num_train])
    test = TensorDataset(images[num_train:], labels[num_train:])
    return DataLoader(train, batch_size, shuffle=True), DataLoader(test, batch_size=256)


def load_test_data() -> Loader:
    """Return the test data of the server."""
    return DataLoader(TensorDataset(*_mnist("test")), batch_size=256)


def train(net: Net, loader: Loader, num_steps: int, lr: float) -> float:
    """Train for `num_steps` minibatches with stochastic gradient descent; return the mean training loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    net.train()
    total, batches = 0.0, itertools.chain.from_iterable(itertools.repeat(loader))
    for images, labels in itertools.islice(batches, num_steps):
        optimizer.zero_grad()
        loss = cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / num_steps


@torch.no_grad()
def test(net: Net, loader: Loader) -> tuple[float, float]:
    """Return the mean loss and the accuracy on test data."""
    net.eval()
    loss, correct, count = 0.0, 0, 0
    for images, labels in loader:
        logits = net(images)
        loss += cross_entropy(logits, labels, reduction="sum").item()
        correct += int((logits.argmax(dim=1) == labels).sum())
        count += len(labels)
    return loss / count, correct / count


def num_examples(loader: Loader) -> int:
    """Return the number of samples in a data set."""
    return len(loader.sampler)  # type: ignore[arg-type]


def _mnist(part: str) -> tuple[Tensor, Tensor]:
    """Return the images and labels of MNIST, which is part of the package lesson-fl: no download is needed."""
    task = lesson.load_task("mnist")
    images, labels = task.train if part == "train" else task.test
    return images.permute(0, 3, 1, 2).float() / 255, labels

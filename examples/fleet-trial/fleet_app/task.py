"""The model, the data of each client, training and evaluation: softmax regression on MNIST in plain NumPy."""

import gzip
from pathlib import Path

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Labels = npt.NDArray[np.uint8]
BATCH_SIZE = 32


def initial_model() -> list[Array]:
    """Return weights of shape (784, 10) and biases of shape (10,), all zero."""
    return [np.zeros((784, 10), np.float32), np.zeros(10, np.float32)]


def load_data(folder: Path, part: str, partition_id: int = 0, num_partitions: int = 1) -> tuple[Array, Labels]:
    """Return every `num_partitions`-th image, shape (num_images, 784), and label of 'train' or 't10k' in a folder."""
    images = np.frombuffer(gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16)
    labels = np.frombuffer(gzip.decompress((folder / f"{part}-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8)
    mine = slice(partition_id, None, num_partitions)
    return images.reshape(-1, 784)[mine].astype(np.float32) / np.float32(255), labels[mine]


def train(model: list[Array], images: Array, labels: Labels, num_steps: int, lr: float) -> tuple[list[Array], float]:
    """Return the model after `num_steps` minibatches of gradient descent, and the mean training loss."""
    (weights, biases), total = (array.copy() for array in model), 0.0
    rng = np.random.default_rng()
    for _ in range(num_steps):
        batch = rng.integers(len(images), size=BATCH_SIZE)
        chosen = images[batch]
        shares = _softmax(chosen @ weights + biases)
        total += float(-np.log(shares[np.arange(BATCH_SIZE), labels[batch]] + 1e-9).mean())
        shares[np.arange(BATCH_SIZE), labels[batch]] -= 1
        weights -= lr / BATCH_SIZE * (chosen.T @ shares)
        biases -= lr / BATCH_SIZE * shares.sum(axis=0)
    return [weights, biases], total / num_steps


def accuracy(model: list[Array], images: Array, labels: Labels) -> float:
    """Return the share of images that the model classifies correctly."""
    weights, biases = model
    return float(((images @ weights + biases).argmax(axis=1) == labels).mean())


def _softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), np.float32)
